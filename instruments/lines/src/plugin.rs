//! QEMU's callbacks: at the start, for each translated block, memory access and system call, and at
//! the end.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::api::{self, Api, Id, Info, Insn, MemInfo, Tb};
use crate::cache::Shape;
use crate::mark::Mark;
use crate::model::{Model, Site};
use crate::report::{self, Refused};

/// The options of the plugin, and everything that it has counted.
struct Plugin {
    api: Api,
    model: Model,
    /// Every instruction that accesses memory, by address.
    sites: Mutex<HashMap<u64, &'static Site>>,
    packets: AtomicU64,
    refused: Refused,
    asked: Asked,
    /// The process that loaded the plugin. A forked child has another number, and must not write
    /// the file again.
    pid: u32,
    system: bool,
}

/// The options `key=value` after the plugin's name.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    /// Path of the output file.
    out: String,
    /// Size and ways of each CPU's cache; `None` for an unlimited cache.
    l2: Option<Shape>,
    /// True if nothing is followed before a mark requests it.
    marked: bool,
    /// Address range of code whose stores of 8 bytes at the start of a line post a buffer of the
    /// given length, which a device writes before any CPU reads it.
    arm: Option<(u64, u64, u64)>,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

/// The interface version, which QEMU reads after loading the plugin and before calling it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that QEMU looks for")]
pub static qemu_plugin_version: AtomicI32 = AtomicI32::new(1);

/// Constructor that runs when the library is loaded, before the version is read.
#[unsafe(link_section = ".init_array")]
#[used]
static CHOOSE: extern "C" fn() = choose_version;

extern "C" fn choose_version() {
    qemu_plugin_version.store(api::version(), Ordering::Relaxed);
}

/// Starts the plugin. If the result is not 0, QEMU ends; the plugin has then printed the reason.
///
/// # Safety
/// QEMU's alone to call: `info` is its description of itself, and `argv` holds `argc` texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let words = (0..usize::try_from(argc).unwrap_or(0)).map(|i| {
        // SAFETY: QEMU passes `argc` pointers to texts that end with a zero byte and live until we
        // return.
        unsafe { CStr::from_ptr(*argv.add(i)) }.to_string_lossy().into_owned()
    });
    // SAFETY: QEMU's pointer is to its `qemu_info_t`, whose first fields are those of `Info` in
    // every version.
    let system = unsafe { (*info).system_emulation };
    let asked = Asked::read(words);
    let found = asked.and_then(|asked| {
        Ok((asked, Api::find().map_err(|name| format!("this QEMU has no {name}"))?))
    });
    let (asked, api) = match found {
        Ok(found) => found,
        Err(why) => {
            report::complain(&why);
            return 1;
        }
    };
    let plugin = PLUGIN.get_or_init(|| Plugin {
        api,
        model: Model::new(asked.l2, !asked.marked),
        sites: Mutex::default(),
        packets: AtomicU64::new(0),
        refused: Refused::default(),
        asked,
        pid: std::process::id(),
        system,
    });
    // SAFETY: QEMU's own functions, called while it installs us with the number that it passed to
    // us; the callbacks are functions of this library, which is never unloaded.
    unsafe {
        (plugin.api.on_translate)(id, translate);
        (plugin.api.on_exit)(id, exit, std::ptr::null_mut());
        if !system {
            (plugin.api.on_syscall)(id, syscall);
            (plugin.api.on_syscall_ret)(id, syscall_ret);
        }
    }
    0
}

/// Registers a callback for each memory access of each instruction of a block.
unsafe extern "C" fn translate(_: Id, tb: *mut Tb) {
    let Some(plugin) = PLUGIN.get() else { return };
    let api = &plugin.api;
    // SAFETY: `tb` is valid until we return, and so are its instructions, whose number QEMU
    // returns. A site is 'static, so that QEMU may pass its address back whenever the code runs.
    unsafe {
        for i in 0..(api.tb_n_insns)(tb) {
            let insn: *mut Insn = (api.tb_insn)(tb, i);
            let site = plugin.site((api.insn_vaddr)(insn));
            let site = std::ptr::from_ref(site).cast_mut().cast::<c_void>();
            (api.on_access)(insn, access, api::NO_REGS, api::LOADS_AND_STORES, site);
        }
    }
}

/// Passes an access to the model.
unsafe extern "C" fn access(cpu: c_uint, info: MemInfo, vaddr: u64, site: *mut c_void) {
    let Some(plugin) = PLUGIN.get() else { return };
    // SAFETY: the pointer is the one that `translate` passed to QEMU, to a site that is never
    // freed.
    let site: &'static Site = unsafe { &*site.cast::<Site>() };
    // SAFETY: `info` describes the access for which QEMU calls us.
    let (store, bytes) =
        unsafe { ((plugin.api.is_store)(info), 1 << (plugin.api.size_shift)(info)) };
    if let Some(mark) = Mark::at(vaddr).filter(|_| store) {
        return plugin.mark(mark);
    }
    if !plugin.model.follows.load(Ordering::Relaxed) {
        return;
    }
    let Some(address) = plugin.address(info, vaddr) else { return };
    plugin.model.access(cpu as usize, address, bytes, store, site);
    if let Some((start, end, buffer)) = plugin.asked.arm
        && store
        && (start..end).contains(&site.pc)
        && bytes == 8
        && address.is_multiple_of(64)
    {
        plugin.model.written_by_device(address, buffer);
    }
}

/// Writes the output file.
unsafe extern "C" fn exit(_: Id, _: *mut c_void) {
    let Some(plugin) = PLUGIN.get() else { return };
    if std::process::id() != plugin.pid {
        return;
    }
    let sites = plugin.sites.lock().unwrap_or_else(PoisonError::into_inner);
    let packets = plugin.packets.load(Ordering::Relaxed);
    let all = sites.values().copied();
    let text = report::text(&plugin.model, all, packets, &plugin.refused, plugin.system);
    if let Err(e) = report::save(&plugin.asked.out, &text) {
        report::complain(&format!("cannot write {}: {e}", plugin.asked.out));
    }
}

thread_local! {
    /// First three arguments of the thread's current system call.
    static CALL: Cell<[u64; 3]> = const { Cell::new([0; 3]) };
}

/// Stores the arguments of a system call.
unsafe extern "C" fn syscall(
    _: Id,
    _: c_uint,
    _: i64,
    a: u64,
    b: u64,
    c: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
) {
    CALL.set([a, b, c]);
}

/// Records a system call that the emulator refused and Linux supports.
unsafe extern "C" fn syscall_ret(_: Id, _: c_uint, number: i64, ret: i64) {
    let Some(plugin) = PLUGIN.get() else { return };
    plugin.refused.note(number, CALL.get(), ret);
}

impl Plugin {
    /// Returns the site of the instruction at `pc`.
    fn site(&self, pc: u64) -> &'static Site {
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        sites.entry(pc).or_insert_with(|| Box::leak(Box::new(Site { pc, ..Site::default() })))
    }

    /// Returns the address of an access: in a guest the physical address, or `None` for a device's
    /// register.
    fn address(&self, info: MemInfo, vaddr: u64) -> Option<u64> {
        if !self.system {
            return Some(vaddr);
        }
        // SAFETY: we are in the callback of the access that `info` describes, as QEMU requires; the
        // description that QEMU returns is valid until the callback ends, and is checked for null.
        unsafe {
            let at = (self.api.hwaddr)(info, vaddr);
            if at.is_null() || (self.api.hwaddr_is_io)(at) {
                return None;
            }
            Some((self.api.hwaddr_phys)(at))
        }
    }

    fn mark(&self, mark: Mark) {
        let (follows, counts) = (&self.model.follows, &self.model.counts);
        match mark {
            Mark::Follow => follows.store(true, Ordering::Relaxed),
            Mark::Begin => {
                follows.store(true, Ordering::Relaxed);
                counts.store(true, Ordering::Relaxed);
            }
            Mark::End => counts.store(false, Ordering::Relaxed),
            Mark::Packets(n) if counts.load(Ordering::Relaxed) => {
                self.packets.fetch_add(n, Ordering::Relaxed);
            }
            Mark::Packets(_) => {}
        }
    }
}

impl Asked {
    fn read(words: impl Iterator<Item = String>) -> Result<Asked, String> {
        let mut asked = Asked::default();
        for word in words {
            let wrong = || format!("{word}: not understood");
            match word.split_once('=').ok_or_else(wrong)? {
                ("out", file) => file.clone_into(&mut asked.out),
                ("marked", "on") => asked.marked = true,
                ("marked", "off") => asked.marked = false,
                ("l2", size) => {
                    let (bytes, ways) = size.split_once('x').ok_or_else(wrong)?;
                    let shape = bytes.parse().ok().zip(ways.parse().ok());
                    asked.l2 = Some(shape.and_then(|(b, w)| Shape::of(b, w)).ok_or_else(wrong)?);
                }
                ("arm", range) => {
                    let numbers = range.split('-').map(|n| u64::from_str_radix(n, 16).ok());
                    let numbers = numbers.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
                    let [start, end, bytes] = numbers[..] else { return Err(wrong()) };
                    asked.arm = Some((start, end, bytes));
                }
                _ => return Err(wrong()),
            }
        }
        if asked.out.is_empty() {
            return Err("out=FILE is missing".into());
        }
        Ok(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Asked, String> {
        Asked::read(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn the_words_behind_the_plugin_are_read_and_wrong_ones_named() {
        let asked = read(&["out=/f", "l2=1048576x8", "marked=on", "arm=ff00-ff80-600"]).unwrap();
        assert_eq!((asked.out.as_str(), asked.marked), ("/f", true));
        assert_eq!(asked.l2, Shape::of(1 << 20, 8));
        assert_eq!(asked.arm, Some((0xff00, 0xff80, 0x600)));
        assert_eq!(read(&[]), Err("out=FILE is missing".into()));
        assert_eq!(read(&["out=/f", "marked=off"]).map(|asked| asked.marked), Ok(false));
        for wrong in ["l2=3x1", "l2=", "arm=1-2", "arm=x-1-2", "size=1", "out", "marked=1"] {
            assert_eq!(read(&["out=/f", wrong]), Err(format!("{wrong}: not understood")));
        }
    }
}
