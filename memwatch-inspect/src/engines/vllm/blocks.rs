//! Counts the blocks of vLLM's pool: in use, shared, reusable and empty.

use memwatch_core::input::kv_cache::{KvCacheContent, KvCacheDoubt};

use crate::engines::objects::EngineObjects;
use crate::memory::MemoryAccess;
use crate::python::fields::ClassFields;

/// Attributes of a `KVCacheBlock` (vllm/v1/core/kv_cache_utils.py): the number of its users, and the
/// hash of a full block that is cached.
const USERS: &str = "ref_cnt";
const HASH: &str = "_block_hash";
/// Maximum plausible number of users of a block.
const MOST_USERS: i64 = 1 << 24;

/// A block.
struct PoolBlock {
    users: i64,
    is_cached: bool,
}

/// Reads blocks, which are mostly of one class.
struct BlockReader<'a, M> {
    objects: &'a EngineObjects<'a, M>,
    fields: Option<ClassFields<2>>,
    /// Address of `None`, once known.
    none: Option<u64>,
    /// The last number object and its value: most blocks have the same few.
    number: (u64, i64),
}

impl<M: MemoryAccess> BlockReader<'_, M> {
    fn read(&mut self, block: u64) -> Result<PoolBlock, KvCacheDoubt> {
        let [users, hash] = self.values(block)?;
        if users != self.number.0 {
            let value = self.objects.integer(users).ok_or_else(|| self.objects.doubt(USERS))?;
            self.number = (users, value);
        }
        let users = self.number.1;
        if !(0..=MOST_USERS).contains(&users) {
            return Err(KvCacheDoubt::Contradiction("a block has an impossible number of users"));
        }
        let is_none = Some(hash) == self.none || self.objects.is_none(hash);
        if is_none {
            self.none = Some(hash);
        }
        Ok(PoolBlock { users, is_cached: !is_none })
    }

    fn values(&mut self, block: u64) -> Result<[u64; 2], KvCacheDoubt> {
        let objects = &self.objects.objects;
        let known = self.fields.as_ref().and_then(|fields| objects.values(fields, block));
        if let Some(values) = known.filter(|values| !values.contains(&0)) {
            return Ok(values);
        }
        let class = self.objects.class(block).ok_or_else(|| self.objects.doubt("blocks"))?;
        if class.name != "KVCacheBlock" {
            return Err(self.objects.doubt("blocks"));
        }
        if self.fields.is_none() {
            self.fields = objects.class_fields(&class, [USERS, HASH]);
        }
        let value = |name: &'static str| {
            let field = objects.field(&class, block, name);
            field.and_then(|field| objects.value(&field)).ok_or_else(|| self.objects.doubt(name))
        };
        Ok([value(USERS)?, value(HASH)?])
    }
}

/// Counts all blocks but the null block. Returns the blocks in use, and the content.
///
/// # Errors
/// A block cannot be read, or has a contradictory number of users.
pub(super) fn count<M: MemoryAccess>(
    objects: &EngineObjects<'_, M>,
    pool: u64,
) -> Result<(u64, KvCacheContent), KvCacheDoubt> {
    let null = objects.field(pool, "null_block")?;
    let blocks = objects.items_of(pool, "blocks")?;
    let mut reader = BlockReader { objects, fields: None, none: None, number: (0, 0) };
    let (mut used, mut shared, mut reusable, mut empty) = (0, 0, 0, 0);
    for block in blocks.into_iter().filter(|block| *block != null) {
        match reader.read(block)? {
            PoolBlock { users: 0, is_cached: true } => reusable += 1,
            PoolBlock { users: 0, is_cached: false } => empty += 1,
            PoolBlock { users, .. } => {
                used += 1;
                shared += u64::from(users > 1);
            }
        }
    }
    let content = KvCacheContent { shared_blocks: Some(shared), reusable_blocks: reusable, empty_blocks: empty };
    Ok((used, content))
}
