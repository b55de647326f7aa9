//! Maps of AF_XDP sockets: for programs of this crate, and for programs of other owners.
//!
//! The kernel takes a socket out of its map when the socket is closed, and no other: who leaves has
//! nothing to clear up in a map of another owner.
//!
//! Source: kernel/bpf/inode.c, net/xdp/xskmap.c, net/xdp/xsk.c `xsk_delete_from_maps`.

use std::ffi::{CString, c_long};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::{NAME_BYTES, bpf, info_of, name, open, refused};
use crate::capability::Capabilities;
use crate::error::{Code, Error, Result};

const MAP_CREATE: c_long = 0;
const MAP_UPDATE_ELEM: c_long = 2;
const OBJ_GET: c_long = 7;
/// Flag: insert only into an empty entry.
const BPF_NOEXIST: u64 = 1;
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// Kinds of maps that an XDP program may use, with the names that bpftool uses.
const KINDS: [(u32, &str); 7] = [
    (1, "hash"),
    (2, "array"),
    (6, "percpu_array"),
    (14, "devmap"),
    (16, "cpumap"),
    (XSKMAP, "xskmap"),
    (25, "devmap_hash"),
];
const XSKMAP: u32 = 17;
/// Bytes of a key (the number of a queue) and of a value (a descriptor).
const CELL_BYTES: u32 = 4;

/// A map from a queue's number to the AF_XDP socket that receives its packets.
#[derive(Debug)]
pub struct SocketMap {
    fd: OwnedFd,
    entries: u32,
}

impl SocketMap {
    /// Makes a map of `entries`, all empty.
    ///
    /// # Errors
    /// `E-PERM` without CAP_BPF, `E-UNSUPPORTED` before Linux 4.18.
    pub fn new(entries: u32) -> Result<SocketMap> {
        #[repr(C)]
        #[derive(Default)]
        struct Attr {
            map_type: u32,
            key_bytes: u32,
            value_bytes: u32,
            entries: u32,
            flags: u32,
            inner_map_fd: u32,
            numa_node: u32,
            name: [u8; NAME_BYTES],
        }
        let attr = Attr {
            map_type: XSKMAP,
            key_bytes: CELL_BYTES,
            value_bytes: CELL_BYTES,
            entries,
            name: name("linerate_xsks"),
            ..Attr::default()
        };
        // SAFETY: the attributes contain no address.
        match unsafe { open(MAP_CREATE, &attr) } {
            Ok(fd) => Ok(SocketMap { fd, entries }),
            Err(e) => Err(refused("cannot make a map of sockets", "BPF_MAP_CREATE", e)),
        }
    }

    /// Opens the map that is pinned at `path`. This requires the rights to read and write the file,
    /// but no capability.
    ///
    /// # Errors
    /// `E-FILE` if there is no such file, or none of a BPF file system; `E-PERM` without the
    /// rights; as [`SocketMap::of`].
    pub fn pinned(path: &str) -> Result<SocketMap> {
        #[repr(C)]
        struct Attr {
            path: u64,
            fd: u32,
            flags: u32,
        }
        let opened = CString::new(path).map_err(|_| Errno::INVAL).and_then(|text| {
            let attr = Attr { path: text.as_ptr().expose_provenance() as u64, fd: 0, flags: 0 };
            // SAFETY: the path ends with a zero byte and outlives the call, and the kernel only
            // reads it.
            unsafe { open(OBJ_GET, &attr) }
        });
        let fd = opened.map_err(|e| not_opened(path, e))?;
        SocketMap::of(fd).map_err(|mut e| {
            e.what = cannot(path);
            e
        })
    }

    /// Creates the value from the descriptor of an existing socket map.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` if it is something else: no map, one of another kind, or with other keys or
    /// values.
    pub fn of(fd: OwnedFd) -> Result<SocketMap> {
        /// The beginning of `struct bpf_map_info`.
        #[repr(C)]
        #[derive(Default)]
        struct Info {
            map_type: u32,
            id: u32,
            key_bytes: u32,
            value_bytes: u32,
            entries: u32,
            flags: u32,
        }
        let wrong = |why: String| {
            Error::new(Code::PortSyntax, "cannot use that as a map of sockets", why)
                .fix("the XSKMAP of the XDP program, find it: bpftool map list")
        };
        // Distinguish the kinds of descriptors (programs, links, maps) by the target of this link:
        // nothing else differs.
        if let Ok(link) = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), [])
            && let link = link.to_string_lossy()
            && !link.ends_with(":bpf-map")
        {
            let thing = link.rsplit_once(':').map_or(&*link, |(_, thing)| thing);
            return Err(wrong(format!("it is not a BPF map: {thing}")));
        }
        let mut info = Info::default();
        // SAFETY: this part of the structure contains no address.
        unsafe { info_of(fd.as_fd(), &mut info) }
            .map_err(|e| wrong(format!("BPF_OBJ_GET_INFO_BY_FD: {e}")))?;
        if info.map_type != XSKMAP {
            let known = KINDS.iter().find(|(kind, _)| *kind == info.map_type);
            let kind = known.map_or(info.map_type.to_string(), |(_, kind)| (*kind).to_owned());
            return Err(wrong(format!("it is a map of the kind {kind}, not xskmap")));
        }
        if (info.key_bytes, info.value_bytes) != (CELL_BYTES, CELL_BYTES) {
            let (key, value) = (info.key_bytes, info.value_bytes);
            return Err(wrong(format!("its keys have {key} bytes and its values {value}, not 4")));
        }
        Ok(SocketMap { fd, entries: info.entries })
    }

    /// Returns the number of the map's entries; sockets can be inserted for queues below it.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Directs the packets of `queue` to `socket`, until the socket is closed; an unbound socket
    /// drops them.
    ///
    /// # Errors
    /// `E-BUSY` if the queue's packets are another socket's; `E-PERM` if the map may only be read;
    /// else whatever bpf(2) says.
    pub fn insert(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<()> {
        #[repr(C)]
        struct Attr {
            map_fd: u32,
            pad: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        let value = socket.as_raw_fd();
        let attr = Attr {
            map_fd: self.fd.as_raw_fd() as u32,
            pad: 0,
            key: (&raw const queue).expose_provenance() as u64,
            value: (&raw const value).expose_provenance() as u64,
            flags: BPF_NOEXIST,
        };
        // SAFETY: key and value have four bytes each, as the map requires, and outlive the call;
        // the kernel only reads them.
        let done = unsafe { bpf(MAP_UPDATE_ELEM, &attr) };
        let what = "cannot put a socket into its map";
        match done {
            Ok(_) => Ok(()),
            Err(Errno::EXIST) => {
                let why = format!("another socket has the entry of queue {queue}");
                Err(Error::new(Code::Busy, what, why)
                    .fix("end the program that has it, see: ss -a --xdp -p"))
            }
            Err(e @ (Errno::PERM | Errno::ACCESS)) => {
                let mut error = Error::os(Code::Permission, what, "BPF_MAP_UPDATE_ELEM", e);
                error.why += ", the map may only be read, or Linux is older than 5.19";
                Err(error.fix(Capabilities::NET_RAW.and(Capabilities::BPF).remedy()))
            }
            Err(e) => Err(refused(what, "BPF_MAP_UPDATE_ELEM", e)),
        }
    }

    /// Returns the map's descriptor as a number, for [`Insn::load_map`](super::Insn::load_map).
    #[must_use]
    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

fn cannot(path: &str) -> String {
    format!("cannot use {path} as a map of sockets")
}

fn not_opened(path: &str, errno: Errno) -> Error {
    let error = |code| Error::os(code, cannot(path), "BPF_OBJ_GET", errno);
    // The kernel returns the same errno for a file in another file system as for missing rights.
    if rustix::fs::statfs(path).is_ok_and(|fs| fs.f_type as u64 & 0xffff_ffff != BPF_FS_MAGIC) {
        return Error::new(Code::File, cannot(path), "the file is not in a BPF file system")
            .fix("pin the map to one: bpftool map pin name xsks_map /sys/fs/bpf/xsks");
    }
    match errno {
        Errno::PERM | Errno::ACCESS => error(Code::Permission).fix(format!(
            "before Linux 5.19 with kernel.unprivileged_bpf_disabled set, run with CAP_BPF; in any case make \
             this user its owner: chown USER {path}"
        )),
        Errno::NOENT | Errno::NOTDIR => {
            error(Code::File).fix("see what is pinned, in a container what is mounted: ls /sys/fs/bpf")
        }
        _ => error(Code::System),
    }
}
