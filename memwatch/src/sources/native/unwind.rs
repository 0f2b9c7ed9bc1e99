//! Unwinds a copied stack from the innermost frame to its callers.

use memwatch_common::native::NativeItem;
use memwatch_core::stack::native::NativeEnd;

use super::MOST_FRAMES;
use super::image::Images;
use super::maps::{CodeLocation, Maps};
use super::rules::{NoCaller, R12, RBP, RBX, REGISTERS, RETURN_ADDRESS, RSP, RegisterValues};

/// Returns the frames of a copy as file numbers and addresses in the files, and why the stack ends
/// there.
pub(super) fn unwind(maps: &mut Maps, images: &mut Images, copy: &NativeItem<'_>) -> (Vec<(usize, u64)>, NativeEnd) {
    let mut values = first(copy);
    let mut frames = Vec::new();
    // A return address may be the first byte of the next function, so the byte before it is looked
    // up.
    let mut returns = false;
    let read = |address: u64| word(copy, address);
    let end = loop {
        let (Some(at), Some(stack)) = (values[RETURN_ADDRESS], values[RSP]) else { break NativeEnd::Contradictory };
        if at == 0 {
            break NativeEnd::Complete;
        }
        let (image, address) = match place(maps, images, at - u64::from(returns)) {
            Ok(place) => place,
            Err(end) => break end,
        };
        if frames.len() >= MOST_FRAMES {
            break NativeEnd::TooManyFrames;
        }
        frames.push((image, address));
        let Some(rules) = images.get_mut(image).and_then(|image| image.rules(address)) else {
            break NativeEnd::NoInformation;
        };
        match rules.caller(&values, &read) {
            // Stacks grow down, so a caller's frame has a higher address, except after a signal,
            // whose handler may have its own stack.
            Ok(caller) if caller[RSP].is_none_or(|above| above <= stack) && !rules.is_signal => {
                break NativeEnd::Contradictory;
            }
            Ok(caller) => values = caller,
            Err(NoCaller::Outermost) => break NativeEnd::Complete,
            Err(NoCaller::NotCopied) => break NativeEnd::CopyEnds,
            Err(NoCaller::Undecided) => break NativeEnd::NoInformation,
        }
        returns = !rules.is_signal;
    };
    (frames, end)
}

fn place(maps: &mut Maps, images: &mut Images, at: u64) -> Result<(usize, u64), NativeEnd> {
    match maps.code(at) {
        CodeLocation::OfFile(image, offset) => {
            let address = images.get_mut(image).and_then(|image| image.address(offset));
            let address = address.ok_or(NativeEnd::NoInformation)?;
            Ok((image, address))
        }
        CodeLocation::Unreadable => Err(NativeEnd::Unreadable),
        CodeLocation::None => Err(NativeEnd::NoInformation),
    }
}

fn first(copy: &NativeItem<'_>) -> RegisterValues {
    let mut values = [None; REGISTERS];
    let registers = &copy.registers;
    for (register, value) in
        [(RBX, registers.rbx), (RBP, registers.rbp), (RSP, registers.rsp), (RETURN_ADDRESS, registers.rip)]
    {
        values[register] = Some(value);
    }
    for (place, value) in values[R12..].iter_mut().zip(registers.r12_to_r15) {
        *place = Some(value);
    }
    values
}

/// Returns a word of the stack, if it was copied.
fn word(copy: &NativeItem<'_>, address: u64) -> Option<u64> {
    let at = usize::try_from(address.checked_sub(copy.registers.rsp)?).ok()?;
    copy.stack.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}
