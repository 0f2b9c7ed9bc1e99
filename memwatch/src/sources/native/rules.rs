//! Unwind rules of one instruction: a row of the table encoded in an entry of `.eh_frame` (DWARF 5,
//! chapter 6.4).

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameOffset, Encoding, EndianSlice, EvaluationResult, Expression, Format,
    LittleEndian, Location, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection as _, Value,
};

/// Number of registers in DWARF's numbering for x86-64 (System V ABI, AMD64 supplement, figure
/// 3.36), up to the return address.
pub(super) const REGISTERS: usize = 17;
/// Number of `rbx`.
pub(super) const RBX: usize = 3;
/// Number of `rbp`.
pub(super) const RBP: usize = 6;
/// Number of `rsp`.
pub(super) const RSP: usize = 7;
/// Number of `r12`; `r13` to `r15` follow.
pub(super) const R12: usize = 12;
/// Number of the return address.
pub(super) const RETURN_ADDRESS: usize = 16;

/// Maximum number of operations of an expression; real ones have some ten.
const MOST_OPERATIONS: u32 = 256;

/// Known values of a frame's registers.
pub(super) type RegisterValues = [Option<u64>; REGISTERS];

/// Unwind rules of an instruction.
#[derive(Debug)]
pub(super) struct UnwindRules {
    frame: FrameAddress,
    registers: Vec<(usize, CalleeRegisterRule)>,
    /// Set for a signal frame: the caller's address is an interrupted instruction, not a return
    /// address.
    pub(super) is_signal: bool,
}

/// Canonical frame address: nearly always the caller's stack pointer.
#[derive(Debug)]
enum FrameAddress {
    Register(usize, i64),
    Expression(Vec<u8>),
}

/// Location or value of a caller's register.
#[derive(Debug)]
enum CalleeRegisterRule {
    Undefined,
    /// Saved at this offset from the frame address.
    At(i64),
    /// Equals the frame address plus this offset.
    Is(i64),
    Register(usize),
    /// Saved at the address the expression yields.
    AtExpression(Vec<u8>),
    /// Equals the value of the expression.
    IsExpression(Vec<u8>),
    Constant(u64),
}

/// Why there is no caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoCaller {
    /// The frame is the outermost.
    Outermost,
    /// The needed memory is not in the copy.
    NotCopied,
    /// The information is insufficient.
    Undecided,
}

type ExpressionReader<'a> = EndianSlice<'a, LittleEndian>;

/// Decodes the rules for an address from an entry of `.eh_frame` at `description` and its CIE;
/// `None` if the entry does not cover the address or is damaged.
pub(super) fn of(common: &[u8], entry: &[u8], description: u64, address: u64) -> Option<UnwindRules> {
    // Only these two of a section of 17 MB are read, so they are joined: the entry keeps its
    // address, with the CIE directly before it.
    let mut section = [common, entry].concat();
    let back = u32::try_from(common.len() + 4).ok()?;
    section.get_mut(common.len() + 4..common.len() + 8)?.copy_from_slice(&back.to_le_bytes());
    let bases = BaseAddresses::default().set_eh_frame(description.wrapping_sub(common.len() as u64));
    let section = EhFrame::new(&section, LittleEndian);
    let entry = section.fde_from_offset(&bases, EhFrameOffset(common.len()), EhFrame::cie_from_offset).ok()?;
    if entry.cie().return_address_register() != Register(16) {
        return None;
    }
    let mut context = UnwindContext::new();
    let row = entry.unwind_info_for_address(&section, &bases, &mut context, address).ok()?;
    let bytes = |expression: &UnwindExpression<usize>| Some(expression.get(&section).ok()?.0.slice().to_vec());
    let frame = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => FrameAddress::Register(register.0.into(), *offset),
        CfaRule::Expression(expression) => FrameAddress::Expression(bytes(expression)?),
    };
    let mut registers = Vec::new();
    for (register, rule) in row.registers() {
        let rule = match rule {
            RegisterRule::Undefined => CalleeRegisterRule::Undefined,
            RegisterRule::SameValue => continue,
            RegisterRule::Offset(offset) => CalleeRegisterRule::At(*offset),
            RegisterRule::ValOffset(offset) => CalleeRegisterRule::Is(*offset),
            RegisterRule::Register(register) => CalleeRegisterRule::Register(register.0.into()),
            RegisterRule::Expression(expression) => CalleeRegisterRule::AtExpression(bytes(expression)?),
            RegisterRule::ValExpression(expression) => CalleeRegisterRule::IsExpression(bytes(expression)?),
            RegisterRule::Constant(value) => CalleeRegisterRule::Constant(*value),
            RegisterRule::Architectural => return None,
        };
        registers.push((register.0.into(), rule));
    }
    Some(UnwindRules { frame, registers, is_signal: entry.is_signal_trampoline() })
}

impl UnwindRules {
    /// Returns the caller's registers; `read` reads a word of the stack.
    pub(super) fn caller(
        &self,
        values: &RegisterValues,
        read: &impl Fn(u64) -> Option<u64>,
    ) -> Result<RegisterValues, NoCaller> {
        let value = |register: usize| values.get(register).copied().flatten();
        let frame = match &self.frame {
            FrameAddress::Register(register, offset) => {
                value(*register).ok_or(NoCaller::Undecided)?.wrapping_add_signed(*offset)
            }
            FrameAddress::Expression(bytes) => evaluate(bytes, None, values, read)?,
        };
        let mut caller = *values;
        // Caller-saved registers are lost (System V ABI, figure 3.4), and the caller has another
        // return address.
        for lost in (0..REGISTERS).filter(|register| !KEPT.contains(register)) {
            caller[lost] = None;
        }
        caller[RSP] = Some(frame);
        for (register, rule) in &self.registers {
            let found = match rule {
                CalleeRegisterRule::Undefined if *register == RETURN_ADDRESS => return Err(NoCaller::Outermost),
                CalleeRegisterRule::Undefined => Err(NoCaller::Undecided),
                CalleeRegisterRule::At(offset) => read(frame.wrapping_add_signed(*offset)).ok_or(NoCaller::NotCopied),
                CalleeRegisterRule::Is(offset) => Ok(frame.wrapping_add_signed(*offset)),
                CalleeRegisterRule::Register(other) => value(*other).ok_or(NoCaller::Undecided),
                CalleeRegisterRule::AtExpression(bytes) => {
                    evaluate(bytes, Some(frame), values, read).and_then(|at| read(at).ok_or(NoCaller::NotCopied))
                }
                CalleeRegisterRule::IsExpression(bytes) => evaluate(bytes, Some(frame), values, read),
                CalleeRegisterRule::Constant(value) => Ok(*value),
            };
            if *register == RETURN_ADDRESS {
                caller[RETURN_ADDRESS] = Some(found?);
            } else if let Some(known) = caller.get_mut(*register) {
                *known = found.ok();
            }
        }
        if caller[RETURN_ADDRESS].is_some() { Ok(caller) } else { Err(NoCaller::Undecided) }
    }
}

/// Callee-saved registers.
const KEPT: [usize; 6] = [RBX, RBP, R12, R12 + 1, R12 + 2, R12 + 3];

/// Evaluates an expression, with the frame address on its stack if given.
fn evaluate(
    bytes: &[u8],
    frame: Option<u64>,
    values: &RegisterValues,
    read: &impl Fn(u64) -> Option<u64>,
) -> Result<u64, NoCaller> {
    let unreported = |_damaged: gimli::Error| NoCaller::Undecided;
    let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 5 };
    let mut evaluation = Expression(ExpressionReader::new(bytes, LittleEndian)).evaluation(encoding);
    evaluation.set_max_iterations(MOST_OPERATIONS);
    if let Some(frame) = frame {
        evaluation.set_initial_value(frame);
    }
    let mut state = evaluation.evaluate().map_err(unreported)?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresMemory { address, size: 8, space: None, .. } => {
                let word = read(address).ok_or(NoCaller::NotCopied)?;
                evaluation.resume_with_memory(Value::Generic(word)).map_err(unreported)?
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = values.get(usize::from(register.0)).copied().flatten().ok_or(NoCaller::Undecided)?;
                evaluation.resume_with_register(Value::Generic(value)).map_err(unreported)?
            }
            _ => return Err(NoCaller::Undecided),
        };
    }
    match evaluation.as_result() {
        [piece] => match piece.location {
            Location::Address { address } => Ok(address),
            Location::Value { value: Value::Generic(value) } => Ok(value),
            _ => Err(NoCaller::Undecided),
        },
        _ => Err(NoCaller::Undecided),
    }
}
