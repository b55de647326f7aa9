//! The types of the public API: each can be named by a program, and the handles can be moved and
//! shared among threads.

use std::time::Duration;

use linerate::*;

fn is_send<T: Send + 'static>() {}
fn is_sync<T: Sync>() {}

#[test]
fn owners_move_between_threads() {
    is_send::<Batch>();
    is_send::<Engine>();
    is_send::<EngineBuilder>();
    is_send::<Local>();
    is_send::<Pacer>();
    is_send::<PendingOrder>();
    is_send::<Box<dyn Plan>>();
    is_send::<Opened>();
    is_send::<Port>();
    is_send::<Queue>();
    is_send::<Skb>();
    is_send::<Stopped>();
    is_send::<Tally>();
    is_send::<Watch>();
    is_send::<Worker>();
    is_send::<memif::Reader>();
    is_send::<qdisc::Shaped<qdisc::FqCodel>>();
    is_send::<wrap::tee::TeeWriter<Vec<u8>>>();
}

#[test]
fn handles_are_shared_among_threads() {
    fn is_shared<T: Clone + Send + Sync + 'static>() {}
    is_shared::<Control>();
    is_shared::<Error>();
    is_shared::<Ledger>();
    is_shared::<Pool>();
    is_shared::<Registry>();
    is_shared::<Skb<Shared>>();
    is_shared::<Stats>();
    is_shared::<Steering>();
    is_shared::<Waker>();
    is_shared::<wrap::tee::Tee>();
    is_send::<Running>();
    is_sync::<Running>();
    is_send::<memif::Held>();
    is_sync::<memif::Held>();
}

#[test]
fn values_print_and_compare_as_their_kind_does() {
    fn is_debug<T: std::fmt::Debug>() {}
    fn is_eq<T: Eq>() {}
    is_debug::<wrap::fault::Faulty>();
    is_debug::<wrap::toll::Tolled>();
    is_eq::<Pool>();
}

#[test]
fn a_driver_outside_can_name_what_it_declares() {
    let rx_gathers = Gathers { time: Duration::from_micros(50), ..Gathers::NOTHING };
    let caps = Caps { rx_gathers, ..Caps::default() };
    assert_eq!(caps.rx_gathers.bytes, 0);
}

/// Checks that each enum can grow: otherwise the compiler would warn that no value reaches `_`.
#[test]
#[deny(unreachable_patterns)]
fn enums_that_may_grow_need_an_arm_for_what_is_added() {
    let mode = |mode| match mode {
        Moderation::Interrupt | Moderation::Napi | Moderation::Fixed { .. } => 0,
        Moderation::Dim | Moderation::Adaptive(_) | Moderation::Busy => 1,
        _ => 2,
    };
    let goal = |goal| match goal {
        Goal::Latency { .. } => 0,
        Goal::Cpu { .. } => 1,
        _ => 2,
    };
    let cap = |cap| match cap {
        TxBatch::Auto => 0,
        TxBatch::Packets(_) => 1,
        _ => 2,
    };
    let pages = |pages| match pages {
        Pages::Base => 0,
        Pages::Huge2M => 1,
        _ => 2,
    };
    let key = |key| match key {
        qdisc::Key::Connection => 0,
        qdisc::Key::SrcIp | qdisc::Key::DstIp => 1,
        _ => 2,
    };
    assert_eq!((mode(Moderation::Busy), goal(Goal::default()), cap(TxBatch::Auto)), (1, 0, 0));
    assert_eq!((pages(Pages::Base), key(qdisc::Key::SrcIp)), (0, 1));
}
