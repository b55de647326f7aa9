//! Queue pairs: of datagrams, or of a connection with one other pair.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::abi::{self, mask};
use super::completion::Completions;
use super::domain::{Address, Domain, Memory, taken};
use crate::error::Result;

/// Most requests of one call of the library.
const CHAIN: usize = 32;
/// Most parts of a message.
pub const PARTS: usize = 2;
/// The number of the pair to which datagrams to a group are addressed.
const GROUP: u32 = 0x00ff_ffff;
/// Time without an acknowledgement after which a connection sends again: 4.096 us * 2^14, 67 ms.
const TIMEOUT: u8 = 14;
/// Number of times that it sends again before it fails: half a second in all.
const RETRIES: u8 = 7;
/// The same to a peer that has no receive request: without limit.
const RETRIES_UNREADY: u8 = 7;
/// The wait before it does: 0.64 ms.
const UNREADY: u8 = 12;

/// The destination of messages: a port of the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The address of the other port, or of a group.
    pub gid: [u8; 16],
    /// The number of the other port on an InfiniBand fabric; 0 on Ethernet.
    pub lid: u16,
    /// The GID index of our address.
    pub gid_index: u8,
    /// Our port.
    pub port: u8,
}

impl Route {
    pub(super) fn attr(&self) -> abi::AhAttr {
        let grh = abi::GlobalRoute {
            dgid: abi::Gid(self.gid),
            sgid_index: self.gid_index,
            hop_limit: 64,
            ..abi::GlobalRoute::default()
        };
        abi::AhAttr {
            grh,
            dlid: self.lid,
            is_global: 1,
            port_num: self.port,
            ..abi::AhAttr::default()
        }
    }
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    /// The route to its port.
    pub route: Route,
    /// The number of its pair.
    pub pair: u32,
    /// The sequence number of its first packet (PSN).
    pub psn: u32,
    /// Longest packet of the path in bytes: 256 to 4096, a power of two.
    pub mtu_bytes: usize,
}

/// The destination of a datagram.
#[derive(Debug, Clone, Copy)]
pub struct To<'a> {
    /// The address of the other port, or of a group.
    pub address: &'a Address,
    /// The number of the other pair; `None` for all pairs of a group.
    pub pair: Option<u32>,
    /// The Q_Key that the other pair requires.
    pub key: u32,
}

/// A request to fill memory with a message.
#[derive(Debug, Clone, Copy, Default)]
pub struct Receive {
    /// The number that the completion of the request has.
    pub id: u64,
    /// Offset of the memory in the registered region.
    pub offset: u64,
    /// Length of the memory in bytes.
    pub len: u32,
}

/// The objects and sizes of which a queue pair is made.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// The domain of the memory.
    pub domain: &'a Arc<Domain>,
    /// The memory that requests name.
    pub memory: &'a Arc<Memory>,
    /// The queue of completions of sent messages.
    pub sent: &'a Arc<Completions>,
    /// The queue of completions of received messages.
    pub received: &'a Arc<Completions>,
    /// Number of requests to receive.
    pub rx_len: u32,
    /// Number of requests to send.
    pub tx_len: u32,
    /// Our port; the first is 1.
    pub port: u8,
}

/// A message to send: its parts in the registered region.
#[derive(Debug, Clone, Copy, Default)]
pub struct Send {
    /// The number that the completion of the request has.
    pub id: u64,
    /// Offset and length of each part.
    pub parts: [(u64, u32); PARTS],
    /// Number of parts, at least one.
    pub len: usize,
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    domain: Arc<Domain>,
    memory: Arc<Memory>,
    raw: NonNull<abi::Qp>,
    is_connected: bool,
    /// Destroyed after the pair.
    _completions: [Arc<Completions>; 2],
}

// SAFETY: all calls of libibverbs may be made by several threads at once.
unsafe impl std::marker::Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a UD queue pair, which takes those that have `key` as their Q_Key; it can receive
    /// and send.
    ///
    /// # Errors
    /// `E-SYSTEM` if the device has no more, or none with so many requests.
    pub fn datagrams(setup: &Setup<'_>, key: u32) -> Result<QueuePair> {
        let pair = QueuePair::new(setup, abi::QPT_UD)?;
        let init = abi::QpAttr {
            qp_state: abi::QPS_INIT,
            port_num: setup.port,
            qkey: key,
            ..abi::QpAttr::default()
        };
        pair.modify(init, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY)?;
        let ready = abi::QpAttr { qp_state: abi::QPS_RTR, ..abi::QpAttr::default() };
        pair.modify(ready, mask::STATE)?;
        let sends = abi::QpAttr { qp_state: abi::QPS_RTS, ..abi::QpAttr::default() };
        pair.modify(sends, mask::STATE | mask::SQ_PSN)?;
        Ok(pair)
    }

    /// Creates one end of a connection, which [`QueuePair::connect`] makes ready.
    ///
    /// # Errors
    /// As [`QueuePair::datagrams`].
    pub fn connection(setup: &Setup<'_>) -> Result<QueuePair> {
        let pair = QueuePair::new(setup, abi::QPT_RC)?;
        let init = abi::QpAttr {
            qp_state: abi::QPS_INIT,
            port_num: setup.port,
            // A peer may send, and neither read nor write memory of this side.
            qp_access_flags: 0,
            ..abi::QpAttr::default()
        };
        let which = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        pair.modify(init, which)?;
        Ok(pair)
    }

    /// Connects the pair with the other end, which has been created; `psn` is the sequence number
    /// of our first packet.
    ///
    /// Cost: syscalls that may wait for the answer of a neighbour: not for a worker.
    ///
    /// # Errors
    /// `E-SYSTEM` if no neighbour answers, or the other end makes no sense.
    pub fn connect(&self, other: &Endpoint, psn: u32) -> Result<()> {
        let ready = abi::QpAttr {
            qp_state: abi::QPS_RTR,
            ah_attr: other.route.attr(),
            path_mtu: other.mtu_bytes.clamp(256, 4096).ilog2() - 7,
            dest_qp_num: other.pair,
            rq_psn: other.psn,
            max_dest_rd_atomic: 0,
            min_rnr_timer: UNREADY,
            ..abi::QpAttr::default()
        };
        let which = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        self.modify(ready, which)?;
        let sends = abi::QpAttr {
            qp_state: abi::QPS_RTS,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RETRIES_UNREADY,
            sq_psn: psn,
            max_rd_atomic: 0,
            ..abi::QpAttr::default()
        };
        let which = mask::STATE
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::SQ_PSN
            | mask::MAX_QP_RD_ATOMIC;
        self.modify(sends, which)
    }

    /// Makes a UD queue pair a member of the group `gid`.
    ///
    /// # Errors
    /// `E-SYSTEM` if the device has no groups, or no room for another member.
    pub fn join(&self, gid: [u8; 16]) -> Result<()> {
        let gid = abi::Gid(gid);
        // SAFETY: the library reads the address.
        let ret = unsafe {
            (self.domain.device.functions().ibv_attach_mcast)(self.raw.as_ptr(), &gid, 0)
        };
        self.domain.device.done(ret, "ibv_attach_mcast")
    }

    /// Removes the pair from the group `gid`; without this a pair that is dropped is only reset.
    pub fn leave(&self, gid: [u8; 16]) {
        let gid = abi::Gid(gid);
        // SAFETY: as in `join`. A pair that is no member stays as it is.
        unsafe { (self.domain.device.functions().ibv_detach_mcast)(self.raw.as_ptr(), &gid, 0) };
    }

    /// Returns the pair's number.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the pair exists, and its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Posts up to 32 requests to receive; returns how many of them the device took, from the
    /// front.
    ///
    /// Cost: one call of the device's driver; a syscall with a device that is emulated.
    ///
    /// # Safety
    /// The device may write the memory of each request that it took until that request is
    /// completed, or the pair is dropped: nothing else reads or writes it meanwhile.
    pub unsafe fn post_receives(&self, requests: &[Receive]) -> usize {
        let mut parts = [abi::Sge::default(); CHAIN];
        let none =
            abi::RecvWr { wr_id: 0, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 1 };
        let mut chain = [none; CHAIN];
        let mut n = 0;
        for request in requests.iter().take(CHAIN) {
            let Some(part) = self.memory.sge(request.offset, request.len) else { break };
            (parts[n], chain[n].wr_id) = (part, request.id);
            n += 1;
        }
        if n == 0 {
            return 0;
        }
        let (part, first) = (parts.as_mut_ptr(), chain.as_mut_ptr());
        for i in 0..n {
            // SAFETY: `i` is within both arrays, and so is `i + 1` where it is used.
            unsafe {
                (*first.add(i)).sg_list = part.add(i);
                (*first.add(i)).next = if i + 1 < n { first.add(i + 1) } else { ptr::null_mut() };
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the chain and its parts live until the call returns, which does not keep them;
        // the memory that they name is registered, and the caller lends it.
        let ret = unsafe {
            let context = (*self.raw.as_ptr()).context;
            ((*context).ops.post_recv)(self.raw.as_ptr().cast(), first, &mut bad)
        };
        taken(ret, first.addr(), bad.addr(), size_of::<abi::RecvWr>(), n)
    }

    /// Posts up to 32 messages as one chain, the last of which makes a completion; returns how many
    /// the device took, from the front. If it refused one of the chain, none of the messages that
    /// it took makes a completion unless it fails. A message that names memory outside the region
    /// ends the chain before it, and the one before it makes a completion.
    ///
    /// `to` is where they go; `None` for a connection.
    ///
    /// Cost: one call of the device's driver, which rings one doorbell; a syscall with a device
    ///       that is emulated.
    ///
    /// # Safety
    /// The device may read the memory of each message until it, or a later one of this pair, is
    /// completed, or the pair is dropped: nothing writes it meanwhile.
    pub unsafe fn post(&self, messages: &[Send], to: Option<To<'_>>) -> usize {
        let mut parts = [[abi::Sge::default(); PARTS]; CHAIN];
        let mut chain = [self.empty(to); CHAIN];
        let mut n = 0;
        for message in messages.iter().take(CHAIN) {
            let of_message = message.parts[..message.len.clamp(1, PARTS)].iter();
            let mut len = 0;
            for (offset, bytes) in of_message {
                let Some(part) = self.memory.sge(*offset, *bytes) else { break };
                parts[n][len] = part;
                len += 1;
            }
            if len != message.len {
                break;
            }
            (chain[n].wr_id, chain[n].num_sge) = (message.id, len as c_int);
            n += 1;
        }
        if n == 0 || to.is_some() == self.is_connected {
            return 0;
        }
        chain[n - 1].send_flags = abi::SEND_SIGNALED;
        let (part, first) = (parts.as_mut_ptr(), chain.as_mut_ptr());
        for i in 0..n {
            // SAFETY: `i` is within both arrays, and so is `i + 1` where it is used.
            unsafe {
                (*first.add(i)).sg_list = part.add(i).cast();
                (*first.add(i)).next = if i + 1 < n { first.add(i + 1) } else { ptr::null_mut() };
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the chain and its parts live until the call returns, which does not keep them;
        // the memory that they name is registered, and the caller lends it.
        let ret = unsafe {
            let context = (*self.raw.as_ptr()).context;
            ((*context).ops.post_send)(self.raw.as_ptr().cast(), first, &mut bad)
        };
        taken(ret, first.addr(), bad.addr(), size_of::<abi::SendWr>(), n)
    }

    /// Returns a request without parts.
    fn empty(&self, to: Option<To<'_>>) -> abi::SendWr {
        let (ah, remote_qpn, remote_qkey) = match to {
            Some(to) => (to.address.raw.as_ptr().cast(), to.pair.unwrap_or(GROUP), to.key),
            None => (ptr::null_mut(), 0, 0),
        };
        abi::SendWr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
            opcode: abi::WR_SEND,
            send_flags: 0,
            imm_data: 0,
            ah,
            remote_qpn,
            remote_qkey,
            rest: [0; 9],
        }
    }

    fn new(setup: &Setup<'_>, kind: u32) -> Result<QueuePair> {
        let cap = abi::QpCap {
            max_send_wr: setup.tx_len,
            max_recv_wr: setup.rx_len,
            max_send_sge: PARTS as u32,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut attr = abi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: setup.sent.raw.as_ptr().cast(),
            recv_cq: setup.received.raw.as_ptr().cast(),
            srq: ptr::null_mut(),
            cap,
            qp_type: kind,
            sq_sig_all: 0,
        };
        let domain = setup.domain;
        // SAFETY: the library reads and writes the structure that the header declares; the objects
        // in it exist.
        let raw =
            unsafe { (domain.device.functions().ibv_create_qp)(domain.raw.as_ptr(), &mut attr) };
        let raw = domain.device.made(raw, "ibv_create_qp")?;
        Ok(QueuePair {
            domain: domain.clone(),
            memory: setup.memory.clone(),
            raw,
            is_connected: kind == abi::QPT_RC,
            _completions: [setup.sent.clone(), setup.received.clone()],
        })
    }

    fn modify(&self, mut attr: abi::QpAttr, which: c_int) -> Result<()> {
        // SAFETY: the library reads the fields that `which` names of the structure that the header
        // declares.
        let ret = unsafe {
            (self.domain.device.functions().ibv_modify_qp)(self.raw.as_ptr(), &mut attr, which)
        };
        self.domain.device.done(ret, "ibv_modify_qp")
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the pair is destroyed once; if the call succeeds, the device uses none of its
        // requests any more.
        let ret = unsafe { (self.domain.device.functions().ibv_destroy_qp)(self.raw.as_ptr()) };
        if ret != 0 {
            // The pair still exists, and a reset takes its requests from it. No device is known
            // that refuses both; one that did could still use the memory of the requests.
            let reset = abi::QpAttr { qp_state: abi::QPS_RESET, ..abi::QpAttr::default() };
            let _ = self.modify(reset, mask::STATE);
        }
    }
}

#[cfg(test)]
mod tests;
