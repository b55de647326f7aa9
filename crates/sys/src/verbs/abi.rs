//! Layouts and constants of `infiniband/verbs.h`, and the functions of libibverbs.
//!
//! The calls that move packets (`ibv_post_send`, `ibv_poll_cq` and the like) are inline functions
//! of the header: they call through a table in the device's context, whose layout is part of the
//! library's interface. All other calls are functions of the library.
//!
//! Source: rdma-core, libibverbs/verbs.h. Fields have kept their places since ABI 1.1, of 2006, and
//! structures have only grown at their ends.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::completion::Completion;

/// A part of a message: `struct ibv_sge`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// A receive request: `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// A send request: `struct ibv_send_wr`, with the datagram's fields of its union.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub ah: *mut c_void,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
    /// The rest of the unions, which no request of ours uses.
    pub rest: [u64; 9],
}
const _: () = assert!(size_of::<SendWr>() == 128);

/// A route: `struct ibv_global_route`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// An address: `union ibv_gid`, which is as aligned as the numbers in the union.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Gid(pub [u8; 16]);

/// An address vector: `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
const _: () = assert!(size_of::<AhAttr>() == 32);

/// Limits of a queue pair: `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// The parts of a queue pair: `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut c_void,
    pub recv_cq: *mut c_void,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}
const _: () = assert!(size_of::<QpInitAttr>() == 64);

/// The attributes of a queue pair: `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct QpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
const _: () = assert!(size_of::<QpAttr>() == 144);

/// The state of a port: `struct ibv_port_attr`. The library's function fills it up to `flags`, and
/// the header's inline function of that name the rest, too.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PortAttr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    /// Room for what newer headers add.
    pub rest: [u32; 8],
}
const _: () = assert!(std::mem::offset_of!(PortAttr, rest) == 52);

/// The first fields of a device's context: `struct ibv_context`.
#[repr(C)]
pub(super) struct Context {
    pub device: *mut c_void,
    pub ops: ContextOps,
    cmd_fd: c_int,
    async_fd: c_int,
    pub num_comp_vectors: c_int,
}

/// The table of the calls that move packets: `struct ibv_context_ops`.
#[repr(C)]
pub(super) struct ContextOps {
    before_poll: [*mut c_void; 11],
    pub poll_cq: unsafe extern "C" fn(*mut c_void, c_int, *mut Completion) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    before_send: [*mut c_void; 12],
    pub post_send: unsafe extern "C" fn(*mut c_void, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub post_recv: unsafe extern "C" fn(*mut c_void, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    behind: [*mut c_void; 5],
}
const _: () = assert!(size_of::<ContextOps>() == 256);

/// The first field of every object: the context whose table its calls are in.
#[repr(C)]
pub(super) struct OfContext {
    pub context: *mut Context,
}

/// The first fields of a queue pair: `struct ibv_qp`.
#[repr(C)]
pub(super) struct Qp {
    pub context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut c_void,
    send_cq: *mut c_void,
    recv_cq: *mut c_void,
    srq: *mut c_void,
    handle: u32,
    pub qp_num: u32,
}

/// A registered region: `struct ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    pub context: *mut Context,
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub lkey: u32,
    rkey: u32,
}

/// A channel of notifications: `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    refcnt: c_int,
}

pub(super) const QPT_RC: c_uint = 2;
pub(super) const QPT_UD: c_uint = 4;
pub(super) const QPS_RESET: c_uint = 0;
pub(super) const QPS_INIT: c_uint = 1;
pub(super) const QPS_RTR: c_uint = 2;
pub(super) const QPS_RTS: c_uint = 3;
pub(super) const WR_SEND: c_uint = 2;
pub(super) const SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const PORT_ACTIVE: c_uint = 4;
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;

/// The bits of `enum ibv_qp_attr_mask` that a change of state sets.
pub(super) mod mask {
    use std::ffi::c_int;

    pub const STATE: c_int = 1;
    pub const ACCESS_FLAGS: c_int = 1 << 3;
    pub const PKEY_INDEX: c_int = 1 << 4;
    pub const PORT: c_int = 1 << 5;
    pub const QKEY: c_int = 1 << 6;
    pub const AV: c_int = 1 << 7;
    pub const PATH_MTU: c_int = 1 << 8;
    pub const TIMEOUT: c_int = 1 << 9;
    pub const RETRY_CNT: c_int = 1 << 10;
    pub const RNR_RETRY: c_int = 1 << 11;
    pub const RQ_PSN: c_int = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub const MIN_RNR_TIMER: c_int = 1 << 15;
    pub const SQ_PSN: c_int = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub const DEST_QPN: c_int = 1 << 20;
}

/// Declares the functions of libibverbs, each with its type, and the structure that has their
/// addresses.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of libibverbs.
        pub(super) struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// Finds the functions by their names.
            ///
            /// # Errors
            /// The first name that `find` does not know.
            ///
            /// # Safety
            /// `find` returns the address of the function of that name in libibverbs, or null.
            pub unsafe fn load(
                find: impl Fn(&std::ffi::CStr) -> *mut c_void,
            ) -> std::result::Result<Functions, &'static str> {
                Ok(Functions {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let symbol = std::ffi::CStr::from_bytes_with_nul(name.as_bytes());
                        let address = symbol.map_or(std::ptr::null_mut(), &find);
                        if address.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: the caller guarantees that this is the function of that name,
                        // whose type the header declares as it is here.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut c_void;
    ibv_free_device_list: fn(*mut *mut c_void) -> ();
    ibv_get_device_name: fn(*mut c_void) -> *const c_char;
    ibv_open_device: fn(*mut c_void) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    ibv_query_gid: fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> *mut OfContext;
    ibv_dealloc_pd: fn(*mut OfContext) -> c_int;
    ibv_reg_mr: fn(*mut OfContext, *mut c_void, usize, c_int) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut OfContext;
    ibv_destroy_cq: fn(*mut OfContext) -> c_int;
    ibv_get_cq_event: fn(*mut CompChannel, *mut *mut OfContext, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut OfContext, c_uint) -> ();
    ibv_create_qp: fn(*mut OfContext, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
    ibv_create_ah: fn(*mut OfContext, *mut AhAttr) -> *mut OfContext;
    ibv_destroy_ah: fn(*mut OfContext) -> c_int;
    ibv_attach_mcast: fn(*mut Qp, *const Gid, u16) -> c_int;
    ibv_detach_mcast: fn(*mut Qp, *const Gid, u16) -> c_int;
    ibv_wc_status_str: fn(c_uint) -> *const c_char;
}

#[cfg(test)]
mod tests;
