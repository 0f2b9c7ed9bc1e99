//! Applies decoded ioctls: objects are created, and are freed by themselves, with their parent, or
//! with their process.

use super::KernelDriver;
use super::decode::{GrantedMemory, Lies, New, ObjectKey, RmEvent, RmViolation, decode};
use super::labels::{AttributedPurpose, MemoryPurpose, PurposeEvidence, Sure};
use super::objects::{DriverDevice, DriverMemory, RmClient, RmObjectKind};
use super::process_ledger::{DriverLedger, FreedLast, RefusedMemory};
use crate::input::rm::RmCall;
use crate::words::{GpuUuid, Tgid};

impl KernelDriver {
    /// Applies one ioctl. `most_bytes` is the largest possible size of memory, if known.
    pub fn apply(&mut self, call: &RmCall, most_bytes: Option<u64>) {
        let event = match decode(call, self.branch()) {
            Ok(event) => event,
            Err(violation) => return self.ledger_of_mut(call.tgid).refuse(violation),
        };
        match event {
            RmEvent::Made { key, parent, new } => self.make(call, (key, parent), new, most_bytes),
            RmEvent::Freed(key) => self.free(call, key),
            RmEvent::Duplicated { key, parent, source } => self.duplicate(call, (key, parent), source),
            RmEvent::Refused { parent, lies, asked_bytes } => self.refuse(call, parent, lies, asked_bytes),
            RmEvent::Named { key, uuid } => self.name(key, uuid),
            RmEvent::Mapped { base, bytes, candidates } => self.map(call.tgid, (base, bytes), candidates),
            RmEvent::Unmapped { base } => self.unmap(call.tgid, base),
            RmEvent::Nothing => {}
        }
    }

    /// Frees the objects of a process at its exit or exec: the kernel driver frees them when the
    /// process's descriptors are closed.
    pub fn end(&mut self, tgid: Tgid, time_ns: u64) {
        self.processes.remove(&tgid);
        let own = self.clients.extract_if(.., |_, client| client.tgid == tgid);
        let gone: Vec<_> = own.flat_map(|(_, client)| client.take_all()).collect();
        let end = RmCall { tgid, entered_ns: time_ns, returned_ns: time_ns, ..RmCall::default() };
        self.let_go(&end, None, gone);
    }

    pub(super) fn ledger_of_mut(&mut self, tgid: Tgid) -> &mut DriverLedger {
        self.processes.entry(tgid).or_default()
    }

    /// Returns the process that owns a client. A child that uses its parent's client does not
    /// become the owner. A client never seen created is older than the attach.
    fn owner(&mut self, call: &RmCall, client: u32) -> Tgid {
        let owner = self.clients.entry(client).or_insert_with(|| RmClient::new(client, call.tgid, true));
        let (tgid, is_older) = (owner.tgid, owner.is_older);
        self.ledger_of_mut(tgid).uses_unknown |= is_older;
        tgid
    }

    fn make(&mut self, call: &RmCall, (key, parent): (ObjectKey, u32), new: New, most_bytes: Option<u64>) {
        let what = match new {
            New::Client => return self.make_client(call, key.client),
            New::Device => RmObjectKind::Device(DriverDevice::default()),
            New::Subdevice => RmObjectKind::Subdevice,
            New::GpuInstance(number) => {
                self.owner(call, key.client);
                self.change_place((key.client, parent), |place| place.gpu_instance = Some(number));
                RmObjectKind::Other
            }
            New::ComputeInstance(number) => {
                self.owner(call, key.client);
                self.change_place((key.client, parent), |place| place.compute_instance = Some(number));
                RmObjectKind::Other
            }
            New::Memory(granted) => return self.make_memory(call, (key, parent), granted, most_bytes),
            New::Other(_) => RmObjectKind::Other,
        };
        self.put(call, (key, parent), what);
    }

    fn make_client(&mut self, call: &RmCall, number: u32) {
        if let Some(before) = self.clients.remove(&number) {
            self.ledger_of_mut(call.tgid).reused += 1;
            let owner = before.tgid;
            self.let_go(call, Some(owner), before.take_all().collect());
        }
        self.clients.insert(number, RmClient::new(number, call.tgid, false));
        self.ledger_of_mut(call.tgid);
    }

    fn put(&mut self, call: &RmCall, (key, parent): (ObjectKey, u32), what: RmObjectKind) {
        let owner = self.owner(call, key.client);
        let Some(client) = self.clients.get_mut(&key.client) else { return };
        let gone = client.put(key.object, parent, what);
        if !gone.is_empty() {
            self.ledger_of_mut(owner).reused += 1;
            self.let_go(call, Some(owner), keyed(key.client, gone));
        }
    }

    fn make_memory(
        &mut self,
        call: &RmCall,
        (key, parent): (ObjectKey, u32),
        granted: GrantedMemory,
        most_bytes: Option<u64>,
    ) {
        let owner = self.owner(call, key.client);
        let Some(client) = self.clients.get(&key.client) else { return };
        let (device, is_older) = (client.device_of(parent), client.is_older);
        let is_misplaced =
            client.get(parent).is_some_and(|what| !matches!(what, RmObjectKind::Device(_) | RmObjectKind::Subdevice));
        let is_video = granted.lies == Lies::Video;
        let is_too_large = most_bytes.is_some_and(|most| granted.granted_bytes > most);
        match (is_video, is_misplaced, is_too_large) {
            (true, true, _) => return self.ledger_of_mut(owner).refuse(RmViolation::Parent),
            (true, _, true) => return self.ledger_of_mut(owner).refuse(RmViolation::TooLarge),
            // The device may be older than the attach. If the client is not older, the creation of
            // its device was missed.
            (true, ..) => self.ledger_of_mut(owner).uses_unknown |= device == 0 || is_older,
            _ => {}
        }
        let named = self.evidence(call, Some((key, granted))).named();
        let memory = DriverMemory {
            lies: granted.lies,
            asked_bytes: granted.asked_bytes,
            granted_bytes: granted.granted_bytes,
            made_ns: call.returned_ns,
            tid: call.tid,
            inside: call.inside,
            device,
            named,
            ranges: Vec::new(),
            left_by: None,
        };
        self.put(call, (key, parent), RmObjectKind::Memory(Box::new(memory)));
        if is_video {
            self.charge(call, key.client, device, granted.granted_bytes);
        }
    }

    /// Collects the evidence for an allocation's label, including whether the same call has just
    /// freed a smaller object with the same key.
    fn evidence(&self, call: &RmCall, made: Option<(ObjectKey, GrantedMemory)>) -> PurposeEvidence<'_> {
        let ledger = self.processes.get(&call.tgid);
        let regrown = made.zip(ledger.and_then(|ledger| ledger.freed_last)).is_some_and(|((key, granted), freed)| {
            let is_same = (freed.key, freed.tid, freed.inside) == (key, call.tid, call.inside);
            is_same && freed.is_contexts && freed.asked_bytes < granted.asked_bytes
        });
        PurposeEvidence {
            probe: call.inside.map(|inside| inside.probe),
            caller: ledger.and_then(|ledger| ledger.stacks.get(call.stack)).filter(|_| call.stack != 0),
            regrown,
            coherency_1: made.is_some_and(|(_, granted)| granted.coherency_1),
        }
    }

    fn charge(&mut self, call: &RmCall, client: u32, device: u32, bytes: u64) {
        let Some(owner) = self.clients.get(&client) else { return };
        let (tgid, place) = (owner.tgid, owner.place(device));
        let key = ObjectKey { client, object: device };
        self.ledger_of_mut(tgid).change(key, &place, call, |live| live.saturating_add(bytes));
    }

    fn free(&mut self, call: &RmCall, key: ObjectKey) {
        if key.client == key.object {
            let Some(client) = self.clients.remove(&key.client) else {
                return self.ledger_of_mut(call.tgid).free_unknown();
            };
            let owner = client.tgid;
            return self.let_go(call, Some(owner), client.take_all().collect());
        }
        let Some(client) = self.clients.get_mut(&key.client) else {
            return self.ledger_of_mut(call.tgid).free_unknown();
        };
        let (owner, gone) = (client.tgid, client.take(key.object));
        if gone.is_empty() {
            return self.ledger_of_mut(owner).free_unknown();
        }
        self.ledger_of_mut(call.tgid).freed_last = match gone.as_slice() {
            [(_, RmObjectKind::Memory(memory))] => Some(FreedLast {
                key,
                tid: call.tid,
                inside: call.inside,
                asked_bytes: memory.asked_bytes,
                is_contexts: matches!(memory.named.label, MemoryPurpose::Context | MemoryPurpose::LocalMemory),
            }),
            _ => None,
        };
        self.let_go(call, Some(owner), keyed(key.client, gone));
    }

    /// Removes freed objects from their owner's charge and passes shared memory on to the next
    /// process.
    fn let_go(&mut self, call: &RmCall, owner: Option<Tgid>, gone: Vec<(ObjectKey, RmObjectKind)>) {
        let mut left = Vec::new();
        for (key, what) in gone {
            let RmObjectKind::Memory(memory) = what else { continue };
            if let Some(ledger) = owner.and_then(|owner| self.processes.get_mut(&owner)) {
                for (base, _) in &memory.ranges {
                    ledger.mapped.remove(base);
                }
                let device = ObjectKey { client: key.client, object: memory.device };
                let place = ledger.live.get(&device).map(|live| live.place.clone()).unwrap_or_default();
                if memory.lies == Lies::Video {
                    ledger.change(device, &place, call, |live| live.saturating_sub(memory.granted_bytes));
                }
            }
            left.push((key, memory));
        }
        let left_by = Some(owner.unwrap_or(call.tgid));
        for (key, memory) in left {
            self.inherit(call, key, DriverMemory { left_by, ..*memory });
        }
    }

    /// Passes memory on to the first holder of a duplicate (`memDestruct`, mem.c).
    fn inherit(&mut self, call: &RmCall, key: ObjectKey, memory: DriverMemory) {
        let mut heirs = self.imported.remove(&key).unwrap_or_default();
        heirs.retain(|heir| matches!(self.what(*heir), Some(RmObjectKind::Imported(source)) if *source == key));
        let Some(heir) = heirs.first().copied() else { return };
        heirs.remove(0);
        for other in &heirs {
            if let Some(what) = self.what_mut(*other) {
                *what = RmObjectKind::Imported(heir);
            }
        }
        if !heirs.is_empty() {
            self.imported.insert(heir, heirs);
        }
        let device = self.clients.get(&heir.client).map_or(0, |client| client.device_of(heir.object));
        let (bytes, is_video) = (memory.granted_bytes, memory.lies == Lies::Video);
        let named = AttributedPurpose { label: MemoryPurpose::Inherited, sure: Sure::High, ..memory.named };
        if let Some(what) = self.what_mut(heir) {
            *what = RmObjectKind::Memory(Box::new(DriverMemory { device, named, ranges: Vec::new(), ..memory }));
        }
        if is_video {
            self.charge(call, heir.client, device, bytes);
        }
    }

    fn what(&self, key: ObjectKey) -> Option<&RmObjectKind> {
        self.clients.get(&key.client)?.get(key.object)
    }

    fn what_mut(&mut self, key: ObjectKey) -> Option<&mut RmObjectKind> {
        self.clients.get_mut(&key.client)?.get_mut(key.object)
    }

    fn duplicate(&mut self, call: &RmCall, (key, parent): (ObjectKey, u32), source: ObjectKey) {
        let original = match self.what(source) {
            Some(RmObjectKind::Memory(_)) => Some(source),
            Some(RmObjectKind::Imported(original)) => Some(*original),
            _ => None,
        };
        self.put(call, (key, parent), RmObjectKind::Other);
        // Inserting the duplicate may have removed the original.
        let Some(original) = original.filter(|original| matches!(self.what(*original), Some(RmObjectKind::Memory(_))))
        else {
            return;
        };
        if let Some(what) = self.what_mut(key) {
            *what = RmObjectKind::Imported(original);
        }
        let mut others = self.imported.remove(&original).unwrap_or_default();
        others.retain(|other| *other != key);
        // Prunes freed entries each time the list has doubled.
        if others.len().is_power_of_two() {
            others.retain(
                |other| matches!(self.what(*other), Some(RmObjectKind::Imported(source)) if *source == original),
            );
        }
        others.push(key);
        self.imported.insert(original, others);
    }

    fn refuse(&mut self, call: &RmCall, parent: ObjectKey, lies: Lies, asked_bytes: Option<u64>) {
        let named = self.evidence(call, None).named();
        let client = self.clients.get(&parent.client);
        let place = client.map(|client| client.place(client.device_of(parent.object))).unwrap_or_default();
        let (time_ns, tid, inside) = (call.returned_ns, call.tid, call.inside);
        self.ledger_of_mut(call.tgid).note_refused(RefusedMemory {
            time_ns,
            tid,
            place,
            lies,
            asked_bytes,
            inside,
            named,
        });
    }

    fn name(&mut self, key: ObjectKey, uuid: GpuUuid) {
        self.change_place((key.client, key.object), |place| place.name(uuid));
    }

    /// Updates what is known of the GPU of an object.
    fn change_place(&mut self, (client, object): (u32, u32), change: impl FnOnce(&mut DriverDevice)) {
        let Some(owner) = self.clients.get_mut(&client) else { return };
        let device = owner.device_of(object);
        let Some(RmObjectKind::Device(place)) = owner.get_mut(device) else { return };
        change(place);
        let (tgid, place) = (owner.tgid, owner.place(device));
        let live =
            self.processes.get_mut(&tgid).and_then(|ledger| ledger.live.get_mut(&ObjectKey { client, object: device }));
        if let Some(live) = live {
            live.place = place;
        }
    }

    /// Records a mapping. The memory is known only if exactly one of the candidates is memory of
    /// this process.
    fn map(&mut self, tgid: Tgid, (base, bytes): (u64, u64), candidates: [ObjectKey; 2]) {
        self.unmap(tgid, base);
        let clients = &self.clients;
        let is_own = |key: &&ObjectKey| {
            let client = clients.get(&key.client).filter(|client| client.tgid == tgid);
            client.is_some_and(|client| matches!(client.get(key.object), Some(RmObjectKind::Memory(_))))
        };
        let mut own = candidates.iter().filter(is_own);
        let (Some(key), None) = (own.next().copied(), own.next()) else { return };
        let client = self.clients.get_mut(&key.client);
        if let Some(memory) = client.and_then(|client| client.memory_mut(key.object)) {
            memory.ranges.push((base, bytes));
            self.ledger_of_mut(tgid).mapped.insert(base, key);
        }
    }

    fn unmap(&mut self, tgid: Tgid, base: u64) {
        let Some(key) = self.processes.get_mut(&tgid).and_then(|ledger| ledger.mapped.remove(&base)) else { return };
        let client = self.clients.get_mut(&key.client);
        if let Some(memory) = client.and_then(|client| client.memory_mut(key.object)) {
            memory.ranges.retain(|(first, _)| *first != base);
        }
    }
}

fn keyed(client: u32, gone: Vec<(u32, RmObjectKind)>) -> Vec<(ObjectKey, RmObjectKind)> {
    gone.into_iter().map(|(object, what)| (ObjectKey { client, object }, what)).collect()
}
