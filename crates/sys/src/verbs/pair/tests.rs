//! Requests to send at the boundary of the driver: a library without a device records the calls of
//! `post_send`.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::fs::File;
use std::mem::{self, MaybeUninit};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::slice;

use super::*;
use crate::verbs::library::Library;
use crate::verbs::{Device, Events};

/// A request of a call: its number, the lengths of its parts, and its flags.
type Request = (u64, Vec<u32>, u32);

thread_local! {
    /// The chain of each call of `post_send` by this thread.
    static CALLS: RefCell<Vec<Vec<Request>>> = const { RefCell::new(Vec::new()) };
    /// The number of the request that the driver refuses.
    static REFUSED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Records the chain, and fails if the refused request is in it.
unsafe extern "C" fn post_send(
    _: *mut c_void,
    first: *mut abi::SendWr,
    bad: *mut *mut abi::SendWr,
) -> c_int {
    let (mut chain, mut status, mut next) = (Vec::new(), 0, first);
    // SAFETY: null, or a request of the chain, which lives until this call returns.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: the request has so many parts, which live as long as the chain.
        let parts = unsafe { slice::from_raw_parts(request.sg_list, request.num_sge as usize) };
        if REFUSED.get() == Some(request.wr_id) {
            // SAFETY: the caller gives the address of a pointer.
            unsafe { *bad = next };
            status = libc::ENOMEM;
        }
        let lens: Vec<u32> = parts.iter().map(|part| part.length).collect();
        chain.push((request.wr_id, lens, request.send_flags));
        next = request.next;
    }
    CALLS.with_borrow_mut(|calls| calls.push(chain));
    status
}

/// Returns a new object of the library, which [`free`] frees.
fn made<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

unsafe extern "C" fn free<T>(object: *mut T) -> c_int {
    // SAFETY: `made` returned the object, and the caller frees it once.
    drop(unsafe { Box::from_raw(object) });
    0
}

unsafe extern "C" fn close_device(context: *mut abi::Context) -> c_int {
    // SAFETY: `device` made it with this type, and it is closed once.
    unsafe { free(context.cast::<MaybeUninit<abi::Context>>()) }
}

unsafe extern "C" fn alloc_pd(context: *mut abi::Context) -> *mut abi::OfContext {
    made(abi::OfContext { context })
}

unsafe extern "C" fn reg_mr(
    _: *mut abi::OfContext,
    _: *mut c_void,
    _: usize,
    _: c_int,
) -> *mut abi::Mr {
    // SAFETY: it consists of pointers and numbers, which may be 0.
    made(unsafe { mem::zeroed::<abi::Mr>() })
}

unsafe extern "C" fn create_comp_channel(_: *mut abi::Context) -> *mut abi::CompChannel {
    // SAFETY: as in `reg_mr`.
    let mut channel = unsafe { mem::zeroed::<abi::CompChannel>() };
    channel.fd = File::open("/dev/null").expect("/dev/null").into_raw_fd();
    made(channel)
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut abi::CompChannel) -> c_int {
    // SAFETY: the channel exists, and nothing else closes its descriptor.
    drop(unsafe { OwnedFd::from_raw_fd((*channel).fd) });
    // SAFETY: `create_comp_channel` made it, and it is destroyed once.
    unsafe { free(channel) }
}

unsafe extern "C" fn no_event(
    _: *mut abi::CompChannel,
    _: *mut *mut abi::OfContext,
    _: *mut *mut c_void,
) -> c_int {
    -1
}

unsafe extern "C" fn create_cq(
    context: *mut abi::Context,
    _: c_int,
    _: *mut c_void,
    _: *mut abi::CompChannel,
    _: c_int,
) -> *mut abi::OfContext {
    made(abi::OfContext { context })
}

unsafe extern "C" fn create_qp(
    domain: *mut abi::OfContext,
    _: *mut abi::QpInitAttr,
) -> *mut abi::Qp {
    // SAFETY: as in `reg_mr`.
    let mut pair = unsafe { mem::zeroed::<abi::Qp>() };
    // SAFETY: the domain exists.
    pair.context = unsafe { (*domain).context };
    made(pair)
}

unsafe extern "C" fn modify_qp(_: *mut abi::Qp, _: *mut abi::QpAttr, _: c_int) -> c_int {
    0
}

extern "C" fn unused() {
    panic!("a function of the library that these tests do not use");
}

/// Returns a device of a library that has the functions above and no others.
fn device() -> Arc<Device> {
    // SAFETY: the functions that the tests call are replaced below, by functions of the same types.
    let functions = unsafe { abi::Functions::load(|_| unused as *mut c_void) };
    let mut functions = functions.expect("an address for each name");
    functions.ibv_close_device = close_device;
    functions.ibv_alloc_pd = alloc_pd;
    functions.ibv_dealloc_pd = free;
    functions.ibv_reg_mr = reg_mr;
    functions.ibv_dereg_mr = free;
    functions.ibv_create_comp_channel = create_comp_channel;
    functions.ibv_destroy_comp_channel = destroy_comp_channel;
    functions.ibv_get_cq_event = no_event;
    functions.ibv_create_cq = create_cq;
    functions.ibv_destroy_cq = free;
    functions.ibv_create_qp = create_qp;
    functions.ibv_modify_qp = modify_qp;
    functions.ibv_destroy_qp = free;
    let context = made(MaybeUninit::<abi::Context>::zeroed()).cast::<abi::Context>();
    // SAFETY: the memory is the context's; of the table of calls, the tests use this one only.
    unsafe { (*context).ops.post_send = post_send };
    let raw = NonNull::new(context).expect("a context");
    let library = Box::leak(Box::new(Library { functions }));
    Arc::new(Device { library, raw, name: "recorded".to_owned() })
}

/// The memory of the messages.
static BYTES: [u8; 4096] = [0; 4096];

/// Returns one end of a connection.
fn connection() -> QueuePair {
    let device = device();
    let domain = Domain::new(&device).expect("a domain");
    let base = NonNull::from(&BYTES).cast::<u8>();
    // SAFETY: the memory of a static stays mapped.
    let memory = unsafe { Memory::register(&domain, base, BYTES.len()) };
    let memory = Arc::new(memory.expect("a registered region"));
    let events = Events::new(&device).expect("a channel");
    let queue = |n| Completions::new(&events, 64, n).expect("a queue of completions");
    let (sent, received) = (queue(0), queue(1));
    let setup = Setup {
        domain: &domain,
        memory: &memory,
        sent: &sent,
        received: &received,
        rx_len: 64,
        tx_len: 64,
        port: 1,
    };
    QueuePair::connection(&setup).expect("a queue pair")
}

/// Returns `n` messages with two parts each.
fn messages(n: u64) -> Vec<Send> {
    (0..n).map(|id| Send { id, parts: [(64 * id, 40), (64 * id + 40, 24)], len: 2 }).collect()
}

/// Posts messages to a driver that refuses one of them; returns how many were taken, and the chain
/// of each call.
fn posted(messages: &[Send], refused: Option<u64>) -> (usize, Vec<Vec<Request>>) {
    REFUSED.set(refused);
    let pair = connection();
    // SAFETY: no device reads the memory, and nothing writes it.
    let n = unsafe { pair.post(messages, None) };
    (n, CALLS.take())
}

/// S2.15.
#[test]
fn up_to_32_messages_are_one_call_of_the_driver_in_which_only_the_last_is_signaled() {
    for (n, most) in [(1, 1), (7, 7), (32, 32), (40, 32)] {
        let (took, calls) = posted(&messages(n), None);
        let flags = |id: u64| if id + 1 == most { abi::SEND_SIGNALED } else { 0 };
        let chain: Vec<Request> = (0..most).map(|id| (id, vec![40, 24], flags(id))).collect();
        assert_eq!((took as u64, calls), (most, vec![chain]), "{n} messages");
    }
}

#[test]
fn requests_from_the_refused_one_on_were_not_taken() {
    for refused in [0, 20, 31] {
        let (took, calls) = posted(&messages(32), Some(refused));
        assert_eq!((took as u64, calls.len(), calls[0].len()), (refused, 1, 32));
    }
}

#[test]
fn a_message_outside_the_region_ends_the_chain_before_it() {
    let mut messages = messages(9);
    messages[5].parts[1].0 = 4090;
    let (took, calls) = posted(&messages, None);
    let flags: Vec<u32> = calls[0].iter().map(|request| request.2).collect();
    assert_eq!((took, calls.len()), (5, 1));
    assert_eq!(flags, [0, 0, 0, 0, abi::SEND_SIGNALED]);
    messages[0].parts[0].0 = 4090;
    assert_eq!(posted(&messages, None), (0, vec![]), "no request is left");
}
