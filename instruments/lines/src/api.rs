//! QEMU's functions that the plugin calls, looked up by name in the process that loaded it.
//!
//! No header of them is packaged, and nothing links against QEMU: if QEMU lacks one, the plugin
//! reports it at the start. Their types are the same in versions 1 to 5 of the interface.
//!
//! Source: QEMU include/qemu/qemu-plugin.h, v7.2.0 and v10.0.0.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The number that QEMU assigns to this plugin.
pub(crate) type Id = u64;
/// QEMU's packed description of a memory access.
pub(crate) type MemInfo = u32;

/// A block of code that QEMU translates.
pub(crate) enum Tb {}
/// An instruction of a block.
pub(crate) enum Insn {}
/// QEMU's description of an address in hardware.
pub(crate) enum HwAddr {}

/// The first fields of `qemu_info_t`; the fields after them depend on the mode.
#[repr(C)]
pub(crate) struct Info {
    pub(crate) target_name: *const c_char,
    pub(crate) version_min: c_int,
    pub(crate) version_cur: c_int,
    pub(crate) system_emulation: bool,
}

/// `QEMU_PLUGIN_CB_NO_REGS`: the callback reads no register.
pub(crate) const NO_REGS: c_int = 0;
/// `QEMU_PLUGIN_MEM_RW`: loads and stores.
pub(crate) const LOADS_AND_STORES: c_int = 3;

pub(crate) type OnTranslate = unsafe extern "C" fn(Id, *mut Tb);
pub(crate) type OnAccess = unsafe extern "C" fn(c_uint, MemInfo, u64, *mut c_void);
pub(crate) type OnExit = unsafe extern "C" fn(Id, *mut c_void);
pub(crate) type OnSyscall =
    unsafe extern "C" fn(Id, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
pub(crate) type OnSyscallRet = unsafe extern "C" fn(Id, c_uint, i64, i64);

/// Declares the table of functions and the function that fills it.
macro_rules! functions {
    ($($name:ident: $symbol:literal $type:ty,)*) => {
        /// The table of QEMU's functions.
        #[derive(Clone, Copy)]
        pub(crate) struct Api {
            $(pub(crate) $name: $type,)*
        }

        impl Api {
            /// Looks up all functions; the error is the name of a function that this QEMU lacks.
            pub(crate) fn find() -> Result<Api, &'static str> {
                Ok(Api {
                    $($name: {
                        let found = symbol($symbol).ok_or($symbol.to_str().unwrap_or_default())?;
                        // SAFETY: the symbol is QEMU's function of that name, which has this type
                        // in the header that this file is derived from; `found` is not null.
                        unsafe { std::mem::transmute::<*mut c_void, $type>(found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    on_translate: c"qemu_plugin_register_vcpu_tb_trans_cb" unsafe extern "C" fn(Id, OnTranslate),
    tb_n_insns: c"qemu_plugin_tb_n_insns" unsafe extern "C" fn(*const Tb) -> usize,
    tb_insn: c"qemu_plugin_tb_get_insn" unsafe extern "C" fn(*const Tb, usize) -> *mut Insn,
    insn_vaddr: c"qemu_plugin_insn_vaddr" unsafe extern "C" fn(*const Insn) -> u64,
    on_access: c"qemu_plugin_register_vcpu_mem_cb"
        unsafe extern "C" fn(*mut Insn, OnAccess, c_int, c_int, *mut c_void),
    is_store: c"qemu_plugin_mem_is_store" unsafe extern "C" fn(MemInfo) -> bool,
    size_shift: c"qemu_plugin_mem_size_shift" unsafe extern "C" fn(MemInfo) -> c_uint,
    hwaddr: c"qemu_plugin_get_hwaddr" unsafe extern "C" fn(MemInfo, u64) -> *mut HwAddr,
    hwaddr_is_io: c"qemu_plugin_hwaddr_is_io" unsafe extern "C" fn(*const HwAddr) -> bool,
    hwaddr_phys: c"qemu_plugin_hwaddr_phys_addr" unsafe extern "C" fn(*const HwAddr) -> u64,
    on_exit: c"qemu_plugin_register_atexit_cb" unsafe extern "C" fn(Id, OnExit, *mut c_void),
    on_syscall: c"qemu_plugin_register_vcpu_syscall_cb" unsafe extern "C" fn(Id, OnSyscall),
    on_syscall_ret: c"qemu_plugin_register_vcpu_syscall_ret_cb"
        unsafe extern "C" fn(Id, OnSyscallRet),
}

/// Returns the plugin interface version to declare: QEMU 7.2 and 8 accept only version 1, and 9.0
/// and later only version 2. The presence of a function of version 2 decides.
pub(crate) fn version() -> c_int {
    if symbol(c"qemu_plugin_num_vcpus").is_some() { 2 } else { 1 }
}

/// Returns the address of a symbol of the process.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `name` ends with a zero byte, as its type promises, and outlives the call.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_qemu_the_first_missing_function_is_named() {
        let missing = Api::find().err();
        assert_eq!(missing, Some("qemu_plugin_register_vcpu_tb_trans_cb"));
        assert_eq!(version(), 1);
    }
}
