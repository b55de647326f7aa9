//! The functions of post 003 with their successors: names in Linux 2.4.17 and in 6.12.
//!
//! A function of today may be part of its caller there; where code moved to several, all of them
//! are named, and nothing is in two rows.

/// The events that the model counts.
pub const EVENTS: [&str; 3] = ["L2_LINES_OUT", "L2_LINES_IN", "LINES_FROM_OTHER_CORE"];
/// The post's idle loop.
pub const IDLE: &str = "poll_idle";

/// The stages of the post's profile, each with its functions in 2.4.17.
#[rustfmt::skip] // A table: a row for each stage.
pub const STAGES: [(&str, &[&str]); 14] = [
    ("irq", &["speedo_interrupt", "handle_IRQ_event"]),
    ("poll", &["speedo_rx", "net_rx_action"]),
    ("refill", &["speedo_refill_rx_buf"]),
    ("allocation", &["alloc_skb", "kmalloc"]),
    ("demux by type", &["eth_type_trans", "netif_rx"]),
    ("route lookup", &["ip_route_input"]),
    ("receive like TCP's", &["tcp_v4_rcv", "tcp_rcv_established"]),
    ("wake-up", &["__wake_up"]),
    ("copy and checksum", &["csum_partial_copy_generic", "skb_copy_and_csum_datagram_iovec"]),
    ("transmit", &["speedo_start_xmit", "tcp_transmit_skb"]),
    ("clean-up", &["speedo_tx_buffer_gc"]),
    ("free", &["__kfree_skb", "skb_release_data", "kfree"]),
    ("timers", &["mod_timer"]),
    ("scheduler", &["schedule"]),
];

/// A row of McKenney's table.
#[derive(Debug, PartialEq, Eq)]
pub struct Name {
    /// The function in 2.4.17.
    pub old: &'static str,
    /// The function's count with affinity.
    pub with: u64,
    /// The function's count without affinity.
    pub without: u64,
}

/// Parses rows `function with without difference` of the post.
pub fn posted(post: &'static str) -> Vec<Name> {
    let row = |line: &'static str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [old, with, without, difference] = words[..] else { return None };
        let (with, without): (u64, u64) = (with.parse().ok()?, without.parse().ok()?);
        let difference: i64 = difference.parse().ok()?;
        let sound =
            without.checked_sub(with).and_then(|n| i64::try_from(n).ok()) == Some(difference);
        (sound || difference < 0).then_some(Name { old, with, without })
    };
    post.lines().filter_map(row).collect()
}

/// Returns true for the functions of 6.12 in which a CPU waits for work under `idle=poll`.
pub fn is_idle(name: &str) -> bool {
    today(IDLE).contains(&name)
}

/// Returns the names of the functions in 6.12 that contain the code of `old`; empty if the code is
/// gone.
pub fn today(old: &str) -> &'static [&'static str] {
    let found = TODAY.iter().find(|(name, _)| *name == old);
    found.map_or(&[], |(_, today)| today)
}

#[rustfmt::skip] // A table: a row for each function.
const TODAY: &[(&str, &[&str])] = &[
    (IDLE, &["cpu_idle_poll"]),
    ("schedule", &["schedule", "__schedule", "schedule_idle", "preempt_schedule_irq", "pick_next_task_fair", "update_curr", "dequeue_entity", "dequeue_entities", "dequeue_task_fair", "put_prev_task_fair", "set_next_entity", "sched_balance_newidle", "update_rq_clock", "finish_task_switch"]),
    ("csum_partial_copy_generic", &["csum_partial", "do_csum", "_copy_to_iter", "rep_movs_alternative", "memcpy", "memcpy_orig"]),
    ("tcp_v4_rcv", &["tcp_v4_rcv", "__inet_lookup_established"]),
    ("mod_timer", &["mod_timer", "__mod_timer", "get_timer_this_cpu_base", "enqueue_timer", "internal_add_timer", "sk_reset_timer"]),
    ("do_softirq", &["do_softirq", "__do_softirq", "handle_softirqs", "irq_exit_rcu", "__irq_exit_rcu", "__local_bh_enable_ip"]),
    ("__wake_up", &["__wake_up", "__wake_up_common", "__wake_up_sync_key", "try_to_wake_up", "ttwu_do_activate", "ttwu_queue_wakelist", "enqueue_task_fair", "enqueue_entity", "select_task_rq_fair", "available_idle_cpu", "woken_wake_function", "sock_def_readable", "wakeup_preempt", "check_preempt_wakeup_fair"]),
    ("speedo_rx", &["e100_poll", "e100_rx_indicate", "e100_rx_clean", "napi_gro_receive", "dev_gro_receive", "inet_gro_receive", "tcp4_gro_receive", "tcp_gro_receive"]),
    ("tcp_recvmsg", &["tcp_recvmsg", "tcp_recvmsg_locked"]),
    ("tcp_data_wait", &["sk_wait_data", "wait_woken", "__lock_sock", "lock_sock_nested", "release_sock", "__release_sock"]),
    ("handle_IRQ_event", &["handle_irq_event", "__handle_irq_event_percpu", "handle_fasteoi_irq", "__common_interrupt", "common_interrupt"]),
    ("speedo_start_xmit", &["e100_xmit_frame", "e100_exec_cb", "e100_xmit_prepare", "e100_exec_cmd"]),
    ("USER", &["USER"]),
    ("tcp_rcv_established", &["tcp_rcv_established", "tcp_queue_rcv", "tcp_data_queue", "tcp_ack"]),
    ("__kfree_skb", &["__kfree_skb", "consume_skb", "kfree_skb_reason", "sk_skb_reason_drop", "skb_release_head_state", "napi_consume_skb", "__consume_stateless_skb", "skb_attempt_defer_free"]),
    ("net_rx_action", &["net_rx_action", "__napi_poll", "napi_complete_done", "__napi_schedule"]),
    ("eth_type_trans", &["eth_type_trans"]),
    ("speedo_interrupt", &["e100_intr"]),
    ("ip_route_input", &["ip_route_input_noref", "ip_route_input_rcu", "ip_route_input_slow", "ip_rcv_finish_core", "tcp_v4_early_demux"]),
    ("tcp_prequeue_process", &["tcp_add_backlog", "tcp_v4_fill_cb"]),
    ("ip_queue_xmit", &["ip_queue_xmit", "__ip_queue_xmit", "__ip_local_out", "ip_local_out"]),
    ("speedo_refill_rx_buf", &["e100_rx_alloc_skb"]),
    ("ip_rcv", &["ip_rcv", "ip_rcv_core", "ip_rcv_finish", "ip_list_rcv", "ip_sublist_rcv"]),
    ("tcp_event_data_recv", &["tcp_event_data_recv", "__tcp_ack_snd_check", "tcp_grow_window"]),
    ("skb_copy_and_csum_datagram_iovec", &["skb_copy_datagram_iter", "__skb_datagram_iter", "simple_copy_to_iter"]),
    ("netif_rx", &["netif_receive_skb_list_internal", "__netif_receive_skb_list_core", "__netif_receive_skb_core", "__netif_receive_skb_one_core"]),
    ("mcount", &["__fentry__"]),
    ("tcp_transmit_skb", &["__tcp_transmit_skb", "__tcp_send_ack", "tcp_send_ack", "tcp_v4_send_check"]),
    ("tcp_v4_do_rcv", &["tcp_v4_do_rcv"]),
    ("sock_recvmsg", &["sock_recvmsg", "sock_read_iter", "security_socket_recvmsg"]),
    ("speedo_tx_buffer_gc", &["e100_tx_clean"]),
    ("tcp_copy_to_iovec", &[]),
    ("kmalloc", &["__kmalloc_node_track_caller_noprof", "__kmalloc_noprof", "kmem_cache_alloc_node_noprof", "kmem_cache_alloc_noprof", "kmalloc_reserve", "___slab_alloc", "__slab_alloc"]),
    ("ip_output", &["ip_output", "ip_finish_output", "__ip_finish_output", "ip_finish_output2"]),
    ("sys_recvfrom", &["__sys_recvfrom", "__x64_sys_recvfrom", "vfs_read", "ksys_read"]),
    ("alloc_skb", &["__alloc_skb", "__netdev_alloc_skb", "__build_skb_around", "build_skb_around", "__page_frag_alloc_align", "napi_build_skb", "__build_skb"]),
    ("skb_release_data", &["skb_release_data", "skb_free_head"]),
    ("fget", &["fget", "__fget_files", "fdget", "fdget_pos", "__fdget", "__fget_light"]),
    ("fput", &["fput", "__fput"]),
    ("sock_wfree", &["sock_wfree", "tcp_wfree", "__sock_wfree"]),
    ("inet_recvmsg", &["inet_recvmsg"]),
    ("__switch_to", &["__switch_to", "__switch_to_asm", "switch_mm_irqs_off", "switch_fpu_return"]),
    ("qdisc_restart", &["__qdisc_run", "sch_direct_xmit", "dev_hard_start_xmit"]),
    ("speedo_refill_rx_buffers", &[]),
    ("dev_queue_xmit", &["__dev_queue_xmit", "validate_xmit_skb"]),
    ("check_pgt_cache", &[]),
    ("kfree", &["kfree", "page_frag_free", "free_unref_page", "__slab_free", "free_frozen_pages"]),
    ("ip_local_deliver", &["ip_local_deliver", "ip_local_deliver_finish", "ip_protocol_deliver_rcu"]),
    ("__generic_copy_to_user", &["_copy_to_user"]),
    ("tcp_send_delayed_ack", &["tcp_send_delayed_ack"]),
    ("tcp_v4_checksum_init", &["__skb_checksum_complete", "__skb_checksum", "skb_checksum"]),
    ("cpu_idle", &["do_idle", "cpu_startup_entry"]),
    ("skb_copy_and_csum_datagram", &[]),
    ("pfifo_fast_enqueue", &["pfifo_fast_enqueue", "fq_codel_enqueue"]),
    ("cleanup_rbuf", &["tcp_cleanup_rbuf", "__tcp_cleanup_rbuf", "tcp_rcv_space_adjust"]),
    ("kfree_skbmem", &["kfree_skbmem", "kmem_cache_free"]),
    ("pfifo_fast_dequeue", &["pfifo_fast_dequeue", "fq_codel_dequeue"]),
    ("__generic_copy_from_user", &["_copy_from_user", "copy_from_user_nofault"]),
    ("sys_recv", &["__x64_sys_read"]),
    ("csum_partial", &[]),
    ("remove_wait_queue", &["remove_wait_queue"]),
    ("add_wait_queue", &["add_wait_queue"]),
    ("system_call", &["entry_SYSCALL_64", "do_syscall_64", "x64_sys_call", "syscall_exit_to_user_mode", "entry_SYSCALL_64_after_hwframe"]),
    ("sockfd_lookup", &["sockfd_lookup_light"]),
    ("schedule_timeout", &["schedule_timeout"]),
    ("do_gettimeofday", &["ktime_get", "ktime_get_with_offset", "tcp_mstamp_refresh", "read_tsc", "ktime_get_update_offsets_now"]),
    ("sys_socketcall", &[]),
    ("do_check_pgt_cache", &[]),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const POST: &str = include_str!("../../../instruments/seeds/posts/003_5ab5121f9d39ea70.txt");

    #[test]
    fn every_stage_has_functions_of_the_post_that_are_there_today() {
        let (post, page) = (posted(POST), include_str!("../../../docs/lines.md"));
        for (stage, functions) in STAGES {
            for old in functions {
                assert!(post.iter().any(|row| row.old == *old), "{stage}: {old}");
                assert!(!today(old).is_empty(), "{stage}: {old}");
            }
            assert!(page.contains(&format!("\n- {stage}: ")), "{stage}: not in docs/lines.md");
        }
    }

    #[test]
    fn every_row_of_the_post_has_its_names_and_no_name_is_in_two() {
        let post = posted(POST);
        let first = Name { old: IDLE, with: 72241, without: 121_743 };
        assert_eq!((post.len(), &post[0]), (68, &first));
        let named: BTreeSet<&str> = TODAY.iter().map(|(old, _)| *old).collect();
        let rows: BTreeSet<&str> = post.iter().map(|name| name.old).collect();
        assert_eq!(named, rows);
        let all: Vec<&str> = TODAY.iter().flat_map(|(_, today)| *today).copied().collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }
}
