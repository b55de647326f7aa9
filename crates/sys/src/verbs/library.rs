//! libibverbs, loaded when the first device is opened: programs without such a port do not need it.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use super::abi::{self, Functions};
use crate::error::{Code, Error, Result, last_errno};

/// The name of the library; its number is that of its interface.
const LIBRARY: &CStr = c"libibverbs.so.1";

/// The loaded library. It is never unloaded, because drivers of devices that it has loaded keep
/// threads and handlers.
pub(super) struct Library {
    pub functions: Functions,
}

impl Library {
    /// Returns the library, and loads it at the first call.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if it is not installed, or lacks a function.
    pub fn load() -> Result<&'static Library> {
        static LOADED: Mutex<Option<&'static Library>> = Mutex::new(None);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = *loaded {
            return Ok(library);
        }
        let refuse = |why: String| {
            Error::new(Code::Unsupported, "cannot use an RDMA device", why)
                .fix("install libibverbs and the device's provider: apt install libibverbs1 ibverbs-providers")
        };
        // SAFETY: loading a library runs its initialisers; those of libibverbs only set up its own
        // state.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(refuse(format!("{} is not installed", LIBRARY.to_string_lossy())));
        }
        // SAFETY: the handle is of the library, whose default version of a function is that of the
        // header.
        let find = |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
        // SAFETY: `find` looks in libibverbs.
        let functions = unsafe { Functions::load(find) };
        let functions = functions.map_err(|name| refuse(format!("it has no function {name}")))?;
        Ok(*loaded.insert(Box::leak(Box::new(Library { functions }))))
    }
}

/// An opened RDMA device.
pub struct Device {
    pub(super) library: &'static Library,
    pub(super) raw: NonNull<abi::Context>,
    pub(super) name: String,
}

// SAFETY: all calls of libibverbs may be made by several threads at once.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The state of a device's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortState {
    /// True if the port can send and receive.
    pub is_active: bool,
    /// Longest datagram in bytes, without its headers: 256 to 4096.
    pub mtu_bytes: usize,
    /// The port's number on an InfiniBand fabric; 0 on Ethernet.
    pub lid: u16,
    /// Number of addresses that the port has.
    pub gids: usize,
    /// True if the device sends on Ethernet (RoCE), false on InfiniBand.
    pub is_ethernet: bool,
}

impl Device {
    /// Returns the names of the devices of this machine.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` without libibverbs, `E-SYSTEM` if the kernel has no interface for it.
    pub fn names() -> Result<Vec<String>> {
        let library = Library::load()?;
        List::get(library).map(|list| list.devices().map(|(name, _)| name).collect())
    }

    /// Opens the device called `name`.
    ///
    /// # Errors
    /// `E-NODEV` if there is none, `E-PERM` if this user may not open it; as [`Device::names`].
    pub fn open(name: &str) -> Result<Arc<Device>> {
        let library = Library::load()?;
        let what = || format!("cannot open the RDMA device {name}");
        let list = List::get(library)?;
        let found = list.devices().find(|(known, _)| known == name);
        let Some((_, device)) = found else {
            let names: Vec<String> = list.devices().map(|(name, _)| name).collect();
            let why = match names.is_empty() {
                true => "this machine has none".to_owned(),
                false => format!("this machine has {}", names.join(", ")),
            };
            return Err(Error::new(Code::NoDevice, what(), why).fix("list them: rdma link"));
        };
        // SAFETY: the device is an entry of the list, which is freed later.
        let raw = unsafe { (library.functions.ibv_open_device)(device) };
        let Some(raw) = NonNull::new(raw) else {
            let errno = last_errno();
            let denied = matches!(errno, Errno::ACCESS | Errno::PERM);
            let code = if denied { Code::Permission } else { Code::System };
            let e = Error::os(code, what(), "ibv_open_device", errno);
            return Err(if denied { e.fix("allow this user: ls -l /dev/infiniband") } else { e });
        };
        Ok(Arc::new(Device { library, raw, name: name.to_owned() }))
    }

    /// Returns the state of `port`; the first is 1.
    ///
    /// # Errors
    /// `E-SYSTEM` if the device has no such port.
    pub fn port(&self, port: u8) -> Result<PortState> {
        let mut attr = abi::PortAttr::default();
        // SAFETY: the context is open, and the library writes no more than the structure has room
        // for.
        let ret = unsafe { (self.functions().ibv_query_port)(self.raw.as_ptr(), port, &mut attr) };
        self.done(ret, "ibv_query_port")?;
        Ok(PortState {
            is_active: attr.state == abi::PORT_ACTIVE,
            mtu_bytes: 128 << attr.active_mtu.min(5),
            lid: attr.lid,
            gids: usize::try_from(attr.gid_tbl_len).unwrap_or(0),
            is_ethernet: attr.link_layer == abi::LINK_LAYER_ETHERNET,
        })
    }

    /// Returns address number `index` of `port`; `None` if that place is empty.
    #[must_use]
    pub fn gid(&self, port: u8, index: u8) -> Option<[u8; 16]> {
        let mut gid = abi::Gid::default();
        // SAFETY: as in `port`.
        let ret = unsafe {
            (self.functions().ibv_query_gid)(self.raw.as_ptr(), port, index.into(), &mut gid)
        };
        (ret == 0 && gid != abi::Gid::default()).then_some(gid.0)
    }

    pub(super) fn functions(&self) -> &'static Functions {
        &self.library.functions
    }

    /// Returns an error for a result of the library that is not 0.
    pub(super) fn done(&self, ret: c_int, call: &str) -> Result<()> {
        if ret == 0 { Ok(()) } else { Err(self.failed(call, errno_of(ret))) }
    }

    /// Returns the object that the library has made, or its error.
    pub(super) fn made<T>(&self, raw: *mut T, call: &str) -> Result<NonNull<T>> {
        NonNull::new(raw).ok_or_else(|| self.failed(call, last_errno()))
    }

    fn failed(&self, call: &str, errno: Errno) -> Error {
        let what = format!("cannot use the RDMA device {}", self.name);
        let e = Error::os(Code::System, what, call, errno);
        match errno {
            // The kernel counts registered memory as locked.
            Errno::NOMEM => e.fix("raise the limit of locked memory: ulimit -l unlimited"),
            _ => e,
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the context is open, and every object of it holds a reference to this value.
        unsafe { (self.functions().ibv_close_device)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Returns the errno of a call that returns it, or -1 with errno set.
pub(super) fn errno_of(ret: c_int) -> Errno {
    if ret > 0 { Errno::from_raw_os_error(ret) } else { last_errno() }
}

/// Returns the library's words for the status of a completion.
pub(super) fn status_text(library: &Library, status: c_uint) -> String {
    // SAFETY: the library returns a constant text for any number.
    let text = unsafe { (library.functions.ibv_wc_status_str)(status) };
    if text.is_null() {
        return format!("status {status}");
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The list of devices.
struct List {
    library: &'static Library,
    raw: NonNull<*mut c_void>,
    len: usize,
}

impl List {
    fn get(library: &'static Library) -> Result<List> {
        let mut len: c_int = 0;
        // SAFETY: the library writes the number of devices.
        let raw = unsafe { (library.functions.ibv_get_device_list)(&mut len) };
        let Some(raw) = NonNull::new(raw) else {
            let (what, call) = ("cannot list the RDMA devices", "ibv_get_device_list");
            return Err(match last_errno() {
                Errno::NOSYS => {
                    let why = "this kernel has no RDMA, or its module ib_uverbs is not loaded";
                    Error::new(Code::Unsupported, what, why).fix("modprobe ib_uverbs")
                }
                errno => Error::os(Code::System, what, call, errno),
            });
        };
        Ok(List { library, raw, len: usize::try_from(len).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = (String, *mut c_void)> {
        (0..self.len).map(|i| {
            // SAFETY: the list has `len` entries, each of which is a device with a name.
            unsafe {
                let device = *self.raw.as_ptr().add(i);
                let name = CStr::from_ptr((self.library.functions.ibv_get_device_name)(device));
                (CString::from(name).to_string_lossy().into_owned(), device)
            }
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is the library's, and freed once.
        unsafe { (self.library.functions.ibv_free_device_list)(self.raw.as_ptr()) };
    }
}
