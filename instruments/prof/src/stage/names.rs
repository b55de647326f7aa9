//! The names of functions by stage: of Linux 2.4 as in the posts of 2002, of current kernels, and
//! of our own crates.
//!
//! A name with a `*` at its end stands for all that begin so. A whole name goes before a prefix, a
//! longer prefix before a shorter.

use super::Stage;

/// A stage with its names.
pub(super) type Names = (Stage, &'static [&'static str]);

/// Functions that allocate and free packet buffers, which are the subject of the post of March
/// 2002.
pub(super) const BUFFER: &[&str] = &[
    "kmalloc",
    "kfree",
    "alloc_skb",
    "alloc_skb_frame",
    "kfree_skbmem",
    "__kfree_skb",
    "skb_release_data",
    // The names of these functions in current kernels.
    "__alloc_skb",
    "napi_alloc_skb",
    "__napi_alloc_skb",
    "__netdev_alloc_skb",
    "napi_build_skb",
    "build_skb",
    "kmalloc_reserve",
    "__kmalloc",
    "__kmalloc_node_track_caller_noprof",
    "kmem_cache_alloc_node_noprof",
    "kmem_cache_free",
    "skb_free_head",
    "skb_release_head_state",
    "sk_skb_reason_drop",
    "kfree_skb_reason",
    "consume_skb",
    "napi_consume_skb",
];

/// Names of the kernel.
#[rustfmt::skip] // A table: lines are by theme, not by width.
pub(super) const KERNEL: &[Names] = &[
    (Stage::Driver, &[
        // Drivers of the posts' time: eepro100, e1000, tg3, acenic.
        "speedo_*", "e1000_*", "e100_*", "tg3_*", "ace_*",
        "e1000e_*", "igb_*", "igc_*", "ixgbe_*", "ixgbevf_*", "i40e_*", "iavf_*", "ice_*", "idpf_*",
        "mlx4_*", "mlx5_*", "mlx5e_*", "bnx2x_*", "bnxt_*", "ena_*", "gve_*", "nfp_*", "qede_*",
        "cxgb4_*", "sfc_*", "efx_*", "hns3_*", "rtl8169_*", "r8169_*", "stmmac_*", "mvneta_*",
        "mvpp2_*", "macb_*", "fec_enet_*", "dpaa2_eth_*", "enetc_*", "aq_ring_*", "mana_*",
        "virtio*", "virtnet_*", "virtqueue_*", "vring_*", "xennet_*", "netvsc_*", "vmxnet3_*",
        "veth_*", "tun_*", "tap_*", "vhost_*", "ipvlan_*", "macvlan_*", "loopback_xmit",
        "dma_map_*", "dma_unmap_*", "dma_sync_*", "dma_direct_*", "iommu_*", "intel_iommu_*",
        "swiotlb_*", "ioread32", "iowrite32",
    ]),
    (Stage::Core, &[
        "net_rx_action", "net_tx_action", "netif_rx*", "netif_receive_skb*", "__netif_*",
        "netif_skb_features", "enqueue_to_backlog", "process_backlog", "napi_*", "__napi_*",
        "gro_*", "dev_gro_receive", "inet_gro_*", "eth_type_trans", "eth_*",
        // `dev_*` would be too wide: the driver model has such names, too, as dev_attr_show.
        "dev_queue_xmit*", "__dev_queue_xmit*", "dev_direct_xmit*", "__dev_direct_xmit",
        "dev_hard_start_xmit", "dev_loopback_xmit", "dev_nit_active*", "dev_forward_skb*",
        "__dev_forward_skb*", "dev_map_*", "dev_get_by_*", "__dev_get_by_*", "dev_fill_forward_path",
        "dev_watchdog*", "dev_sw_netstats_*", "dev_fetch_sw_netstats", "dev_lstats_*",
        "dev_core_stats*", "dev_requeue_skb", "dev_skb_*", "dev_activate", "dev_deactivate*",
        "netdev_*", "__netdev_*", "qdisc_*", "__qdisc_*", "pfifo_*", "fq_*", "fq_codel_*", "tcf_*",
        "tc_*", "cls_*", "sch_direct_xmit", "validate_xmit_*", "skb_*", "__skb_*", "pskb_*",
        "neigh_*", "__neigh_*", "arp_*", "br_*", "vlan_*", "bond_*", "packet_rcv*", "tpacket_*",
        "nf_*", "__nf_*", "nft_*", "ipt_*", "xt_*", "bpf_*", "__bpf_*", "___bpf_prog_run",
        "xdp_*", "__xdp_*", "xsk_*", "__xsk_*", "xp_*", "get_rps_cpu", "rps_*", "flow_dissect*",
        "__flow_*",
    ]),
    (Stage::Ip, &[
        "ip_*", "__ip_*", "ip6_*", "__ip6_*", "ipv4_*", "ipv6_*", "__ipv6_*", "fib_*", "__fib_*",
        "fib6_*",
        // `rt_*` would be too wide: a real-time kernel's locks and scheduler have such names, too.
        "rt_cache_*", "rt_dst_*", "rt_set_nexthop*", "rt_add_uncached_list", "rt_del_uncached_list",
        "rt_hash_*", "rt_intern_hash", "rt_garbage_collect", "rt_may_expire", "rt_check_expire",
        "rt_bind_*", "rt_fill_info", "rt_genid_*", "rt_free", "rt_drop", "rt_score", "rt6_*", "icmp_*", "icmpv6_*", "igmp_*", "dst_*",
        "raw_local_deliver", "xfrm_*", "__xfrm_*",
    ]),
    (Stage::Tcp, &[
        "tcp_*", "__tcp_*", "tcp4_*", "tcp6_*", "cleanup_rbuf", "bictcp_*", "cubictcp_*", "bbr_*",
        "udp_*", "__udp_*", "udp4_*", "__udp4_*", "udp6_*", "udpv6_*", "__udpv6_*", "inet_ehashfn",
        "__inet_lookup*", "inet_csk_*", "inet_twsk_*",
    ]),
    (Stage::Socket, &[
        "sock_*", "__sock_*", "sk_*", "__sk_*", "sockfd_*", "inet_*", "__inet_*", "inet6_*",
        "unix_*", "packet_*", "sys_socketcall", "sys_recv*", "sys_send*", "__sys_recv*",
        "__sys_send*", "___sys_recv*", "___sys_send*", "move_addr_to_*", "import_iovec",
        "lock_sock_*", "release_sock", "__release_sock", "datagram_poll*", "__pollwait", "__skb_recv_*",
        "__skb_wait_for_more_packets", "security_sock*", "import_ubuf",
        // Look-up and release of a descriptor's file, which in these workloads is a socket.
        "fget", "fput", "__fget*", "__fdget*", "fdget*", "do_select", "do_poll", "do_sys_poll",
        "sys_select", "sys_poll", "ep_*", "do_epoll_*", "sys_epoll_*", "io_uring_*", "io_*",
    ]),
    (Stage::Copy, &[
        "csum_*", "__csum_*", "do_csum", "skb_copy", "skb_copy_*", "__skb_copy_*", "skb_checksum*",
        "__skb_checksum*", "skb_copy_and_csum_*", "tcp_copy_to_iovec", "memcpy*", "__memcpy*",
        "memmove*", "__memmove*", "memset*", "__memset*", "clear_page*",
        // `copy_*` would be too wide: copy_process and copy_page_range belong to fork.
        "copy_page", "copy_page_rep", "copy_page_regs", "copy_page_to_iter*",
        "copy_page_from_iter*", "copy_to_*", "copy_from_*", "copy_user*", "copy_mc_*",
        "copy_highpage", "copy_folio_*", "copyin", "copyout", "csum_and_copy_*", "_copy_*", "__copy_*", "__generic_copy_*", "rep_movs*", "rep_stos*", "clear_user*",
        "simple_copy_to_iter", "__skb_datagram_iter",
        // Checks that precede a copy to or from a program.
        "__check_object_size", "__check_heap_object", "check_stack_object", "__virt_addr_valid",
    ]),
    (Stage::Scheduler, &[
        "schedule*", "__schedule*", "preempt_schedule*", "__switch_to*", "finish_task_switch",
        "context_switch", "switch_mm*", "pick_next_*", "pick_task_*", "pick_eevdf", "put_prev_*",
        "set_next_*", "try_to_wake_up", "ttwu_*", "wake_up_*", "__wake_up*", "default_wake_function",
        "autoremove_wake_function", "select_task_rq*", "select_idle_*", "enqueue_task*",
        "dequeue_task*", "enqueue_entity", "dequeue_entit*", "update_curr*", "update_load_avg*",
        "update_rq_clock*", "sched_*", "__sched_*", "resched_*", "newidle_balance", "sched_balance_*",
        "load_balance", "add_wait_queue*", "remove_wait_queue*", "prepare_to_wait*", "finish_wait",
        "futex_*", "__futex_*", "do_futex", "io_schedule*", "cpuacct_*", "psi_*", "yield_task*", "reschedule_idle",
        // The idle task's loop, which enters and leaves idleness and calls the scheduler, but does
        // not wait itself. As in the posts' figures, only the loop that waits is idle.
        "cpu_idle", "do_idle", "cpu_startup_entry",
    ]),
    (Stage::Memory, &[
        "kmalloc*", "__kmalloc*", "kfree*", "__kfree*", "kvfree*", "kvmalloc*", "kmem_cache_*",
        "__kmem_cache_*", "slab_*", "__slab_*", "___slab_*", "get_partial*", "put_cpu_partial",
        "get_from_partial*", "alloc_skb*", "__alloc_skb", "build_skb*", "__build_skb*",
        "napi_alloc_*", "__napi_alloc_*", "napi_build_skb", "napi_skb_cache_*", "napi_consume_skb",
        "netdev_alloc_*", "__netdev_alloc_*", "dev_kfree_skb*", "__dev_kfree_skb*", "consume_skb",
        "sk_skb_reason_drop", "skb_release_*", "skb_free_*", "skb_attempt_defer_free",
        "skb_clone", "__skb_clone", "skb_page_frag_refill", "sk_page_frag_refill", "page_*", "__page_*", "get_page_*",
        "alloc_page*", "__alloc_page*", "__alloc_frozen_pages*", "free_page*", "__free_page*",
        "free_unref_*", "free_frozen_*", "free_one_page", "free_pcppages_bulk", "rmqueue*",
        "__rmqueue*", "put_page", "__put_page", "folio_*", "__folio_*", "lru_*", "vma_*", "mas_*",
        "do_anonymous_page", "do_wp_page", "do_no_page", "handle_mm_fault", "__handle_mm_fault",
        "do_page_fault", "do_user_addr_fault", "exc_page_fault", "asm_exc_page_fault",
        "lock_vma_under_rcu", "zap_*", "unmap_*", "flush_tlb_*", "vmalloc*", "__vmalloc*", "vfree*",
        // Page tables that 2.4 keeps for the next process; its idle task frees some of them.
        "check_pgt_cache", "do_check_pgt_cache", "mem_cgroup_*", "__mem_cgroup_*", "obj_cgroup_*",
        "memcg_*", "memcg1_*", "__memcg_*", "try_charge*", "build_detached_freelist",
    ]),
    (Stage::Irq, &[
        "do_softirq", "__do_softirq", "handle_softirqs", "raise_softirq*", "__raise_softirq*",
        "irq_*", "__irq_*", "do_IRQ", "common_interrupt", "asm_common_interrupt", "asm_sysvec_*",
        "sysvec_*", "__sysvec_*", "handle_IRQ_event", "handle_irq_*", "handle_edge_irq",
        "handle_fasteoi_irq", "__handle_irq_*", "run_ksoftirqd", "tasklet_*", "apic_*", "x2apic_*",
        "native_apic_*", "smp_call_function*", "generic_smp_call_*", "flush_smp_call_*",
        // Timers, and clocks, which Linux 2.4 reads for a time stamp in every packet.
        "mod_timer*", "__mod_timer", "add_timer*", "del_timer*", "timer_*", "__timer_*",
        "run_timer_*", "__run_timers", "call_timer_fn", "hrtimer_*", "__hrtimer_*", "tick_*",
        "lapic_next_*", "clockevents_*", "do_gettimeofday", "do_gettimeoffset*", "get_fast_time",
        "ktime_*", "__usecs_to_jiffies", "read_tsc", "getnstimeofday*", "rcu_*", "__rcu_*", "note_gp_changes",
    ]),
    (Stage::Syscall, &[
        "system_call*", "entry_SYSCALL_*", "entry_SYSENTER_*", "do_syscall_64", "x64_sys_call",
        "syscall_*", "__syscall_*", "ret_from_sys_call", "ret_from_intr", "exit_to_user_mode*",
        "el0_svc*", "do_el0_svc", "invoke_syscall",
    ]),
    (Stage::Spin, &[
        "__rdtsc_delay", "__loop_delay", "__delay", "__udelay", "__const_udelay", "delay_tsc",
        "delay_loop", "delay_halt*",
    ]),
    (Stage::Lock, &[
        "_raw_spin_*", "_raw_read_*", "_raw_write_*", "__raw_spin_*", "_spin_*", "_read_lock*",
        "_write_lock*", "_read_unlock*", "_write_unlock*", "__raw_callee_save___pv_queued_spin_unlock*",
        "__pv_queued_spin_*", "pv_queued_spin_*", "native_queued_spin_*", "queued_spin_*",
        "queued_read_*", "queued_write_*", "mutex_*", "__mutex_*", "rwsem_*", "down", "down_*",
        "__down*", "up", "up_read", "up_write", "__up", "__up_*", "osq_lock", "osq_unlock",
        "percpu_down_*", "percpu_up_*", "__percpu_down_*",
        // Locks of a real-time kernel, which sleep instead of spinning.
        "rt_spin_*", "rt_read_*", "rt_write_*", "rt_mutex_*", "__rt_mutex_*", "rtlock_*",
        "rwbase_*",
        // Code for contended locks in Linux 2.4, which is in a section of its own.
        "stext_lock", ".text.lock*",
    ]),
    (Stage::Disk, &[
        "tw_*", "scsi_*", "__scsi_*", "sd_*", "__make_request", "generic_make_request", "submit_bh",
        "submit_bio*", "bio_*", "__bio_*", "blk_*", "__blk_*", "end_that_request_*", "ll_rw_block",
        "ide_*", "ata_*", "ahci_*", "nvme_*", "virtblk_*", "dm_*", "__dm_*", "md_*", "raid*",
        "ext2_*", "ext3_*", "ext4_*", "__ext4_*", "xfs_*", "btrfs_*", "jbd2_*", "journal_*",
        "filemap_*", "generic_file_*", "iomap_*", "block_*", "__block_*", "bh_*", "__bread*",
        "overlayfs_*", "ovl_*", "writeback_*", "wb_*",
    ]),
    (Stage::Idle, &[
        "default_idle*", "poll_idle", "mwait_idle*", "intel_idle*", "acpi_idle_*", "acpi_safe_halt",
        "acpi_processor_ffh_cstate_enter", "native_safe_halt", "pv_native_safe_halt", "arch_cpu_idle",
        "arch_safe_halt", "cpuidle_enter*", "cpuidle_idle_call", "cpu_idle_poll", "io_idle",
        "tdx_safe_halt", "haltpoll_*", "default_enter_idle", "cpu_do_idle", "psci_enter_idle*",
    ]),
    (Stage::User, &["USER"]),
    // Called from all stages. These prefixes are longer than `rcu_*` above, and so take precedence.
    (Stage::Other, &["rcu_read_*", "__rcu_read_*"]),
    (Stage::Instrument, &[
        "mcount", "__fentry__", "ftrace_*", "__ftrace_*", "function_trace_call", "perf_*", "__perf_*",
        "x86_pmu_*", "intel_pmu_*", "amd_pmu_*", "native_read_pmc", "kprobe_*", "uprobe_*",
        "nmi_handle", "exc_nmi", "asm_exc_nmi", "default_do_nmi", "trace_*", "ring_buffer_*",
    ]),
];

/// Modules of the kernel, for functions that are not in the names above.
#[rustfmt::skip]
pub(super) const MODULES: &[Names] = &[
    (Stage::Driver, &[
        "eepro100", "e100", "e1000", "e1000e", "igb", "igc", "ixgbe*", "i40e", "iavf", "ice", "idpf",
        "mlx4*", "mlx5*", "bnx2*", "bnxt*", "ena", "gve", "nfp", "qed*", "cxgb4*", "sfc*", "hns3",
        "hclge*", "r8169", "r8152", "stmmac*", "tg3", "atlantic", "mana", "virtio*", "veth", "tun",
        "tap", "vhost*", "hv_netvsc", "vmxnet3", "xen_netfront", "macvlan", "ipvlan",
    ]),
    (Stage::Core, &["bonding", "bridge", "8021q", "nf_*", "nft_*", "xt_*", "x_tables", "sch_*",
        "cls_*", "act_*", "ip_tables", "ip6_tables"]),
    (Stage::Tcp, &["tcp_*"]),
    (Stage::Disk, &[
        "3w_*", "scsi_mod", "sd_mod", "sg", "nvme*", "ahci", "libahci", "libata", "ata_*",
        "virtio_blk", "virtio_scsi", "dm_*", "raid*", "md_mod", "ext4", "jbd2", "mbcache", "xfs",
        "btrfs", "overlay", "zfs", "loop",
    ]),
];

/// Names of programs: our own crates, and the TCP of smoltcp.
#[rustfmt::skip]
pub(super) const PROGRAM: &[Names] = &[
    (Stage::Driver, &["linerate_port::*", "linerate_ring::*"]),
    (Stage::Core, &["linerate_datapath::*", "linerate_wire::*"]),
    (Stage::Tcp, &["linerate_smoltcp::*", "smoltcp::*"]),
    (Stage::Copy, &[
        "linerate_wire::checksum::*", "linerate_wire::partial::Check::sum",
        "linerate_smoltcp::checksum::*", "smoltcp::wire::ip::checksum::*",
        "smoltcp::wire::ipv4::Packet<T>::fill_checksum", "smoltcp::wire::ipv4::Packet<T>::verify_checksum",
        "smoltcp::wire::tcp::Packet<T>::fill_checksum", "smoltcp::wire::tcp::Packet<T>::verify_checksum",
        "smoltcp::wire::udp::Packet<T>::fill_checksum", "smoltcp::wire::udp::Packet<T>::verify_checksum",
    ]),
    (Stage::Memory, &["linerate_skb::*"]),
    (Stage::Syscall, &["linerate_sys::*"]),
    (Stage::Instrument, &["linerate_prof::*", "mcount", "__fentry__", "_mcount"]),
];

/// Names of libraries' functions that copy, allocate and free, which every program calls.
#[rustfmt::skip]
pub(super) const LIBRARY: &[Names] = &[
    (Stage::Copy, &["memcpy*", "__memcpy*", "memmove*", "__memmove*", "memset*", "__memset*"]),
    (Stage::Memory, &[
        "malloc", "free", "calloc", "realloc", "_int_malloc", "_int_free*", "cfree*",
        "__libc_malloc*", "__libc_free*", "__rust_alloc", "__rust_dealloc", "__rdl_alloc",
        "__rdl_dealloc",
    ]),
];
