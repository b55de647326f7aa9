//! Instructions of the kernel's BPF machine: those that packet filters need.
//!
//! Source: Documentation/bpf/standardization/instruction-set.rst.

/// A register: `R0` has the result, `R1` to `R5` have the arguments and are lost in a call, `R6` to
/// `R9` are kept in a call, `R10` is the end of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they have no other names")]
#[repr(u8)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The number of bytes that a load reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Size {
    /// One byte.
    Byte = 0x10,
    /// Two bytes.
    Half = 0x08,
    /// Four bytes.
    Word = 0x00,
}

/// A comparison of unsigned numbers, for a conditional jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum If {
    /// The operands are equal.
    Equal = 0x10,
    /// The first operand is greater.
    Above = 0x20,
    /// The operands have at least one bit in common.
    Bits = 0x40,
    /// The operands differ.
    Differs = 0x50,
    /// The first operand is less.
    Below = 0xa0,
}

/// An instruction, or half of a long one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Insn {
    code: u8,
    /// Destination register in the low half, source register in the high half.
    regs: u8,
    off: i16,
    imm: i32,
}

const _: () = assert!(size_of::<Insn>() == 8);

const LDX_MEM: u8 = 0x61;
const ALU64: u8 = 0x07;
const ALU32: u8 = 0x04;
const JMP: u8 = 0x05;
/// Opcode bit: the second operand is a register.
const X: u8 = 0x08;
const MOV: u8 = 0xb0;
const ADD: u8 = 0x00;
const AND: u8 = 0x50;
const SHL: u8 = 0x60;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
/// Opcode: load of a 64-bit constant.
const LD_IMM64: u8 = 0x18;
/// Value of the source field: the constant is a map's descriptor.
const PSEUDO_MAP_FD: u8 = 1;

impl Insn {
    const fn new(code: u8, dst: Reg, src: u8, off: i16, imm: i32) -> Insn {
        Insn { code, regs: dst as u8 | src << 4, off, imm }
    }

    /// `dst = *(size *)(src + off)`
    #[must_use]
    pub const fn load(size: Size, dst: Reg, src: Reg, off: i16) -> Insn {
        // The opcode of a load, combined with the bits of the size.
        Insn::new(LDX_MEM | size as u8, dst, src as u8, off, 0)
    }

    /// `dst = src`
    #[must_use]
    pub const fn copy(dst: Reg, src: Reg) -> Insn {
        Insn::new(ALU64 | MOV | X, dst, src as u8, 0, 0)
    }

    /// `dst = imm`
    #[must_use]
    pub const fn set(dst: Reg, imm: i32) -> Insn {
        Insn::new(ALU64 | MOV, dst, 0, 0, imm)
    }

    /// `dst += imm`
    #[must_use]
    pub const fn add(dst: Reg, imm: i32) -> Insn {
        Insn::new(ALU64 | ADD, dst, 0, 0, imm)
    }

    /// `dst &= imm`, in 32 bits.
    #[must_use]
    pub const fn and(dst: Reg, imm: i32) -> Insn {
        Insn::new(ALU32 | AND, dst, 0, 0, imm)
    }

    /// `dst <<= imm`
    #[must_use]
    pub const fn shift_left(dst: Reg, imm: i32) -> Insn {
        Insn::new(ALU64 | SHL, dst, 0, 0, imm)
    }

    /// `if dst OP imm` jump; the distance is set when the instruction is placed.
    #[must_use]
    pub const fn jump_if(op: If, dst: Reg, imm: i32) -> Insn {
        Insn::new(JMP | op as u8, dst, 0, 0, imm)
    }

    /// `if dst OP src` jump.
    #[must_use]
    pub const fn jump_if_reg(op: If, dst: Reg, src: Reg) -> Insn {
        Insn::new(JMP | op as u8 | X, dst, src as u8, 0, 0)
    }

    /// Jumps; the distance is set when the instruction is placed.
    #[must_use]
    pub const fn jump() -> Insn {
        Insn::new(JMP, Reg::R0, 0, 0, 0)
    }

    /// `r0 = helper(r1, …, r5)`
    #[must_use]
    pub const fn call(helper: i32) -> Insn {
        Insn::new(JMP | CALL, Reg::R0, 0, 0, helper)
    }

    /// `return r0`
    #[must_use]
    pub const fn exit() -> Insn {
        Insn::new(JMP | EXIT, Reg::R0, 0, 0, 0)
    }

    /// `dst = map`: two instructions.
    #[must_use]
    pub const fn load_map(dst: Reg, fd: i32) -> [Insn; 2] {
        [Insn::new(LD_IMM64, dst, PSEUDO_MAP_FD, 0, fd), Insn::new(0, Reg::R0, 0, 0, 0)]
    }

    /// Returns the same jump with its distance, counted from the next instruction.
    #[must_use]
    pub const fn to(mut self, distance: i16) -> Insn {
        self.off = distance;
        self
    }
}
