//! The layouts and constants compared with the header.

use super::*;
use std::mem::offset_of;
use std::process::Command;

/// Returns the offsets of fields that have the same names in the header.
macro_rules! offsets {
    ($ours:ident, $theirs:literal: $($field:ident),*) => {
        [$((
            concat!("offsetof(struct ", $theirs, ", ", stringify!($field), ")"),
            offset_of!($ours, $field),
        )),*]
    };
}

/// Returns the bits of a change of state, with their names in the header.
macro_rules! bits {
    ($($name:ident),*) => {
        [$((concat!("IBV_QP_", stringify!($name)), mask::$name as c_uint)),*]
    };
}

type Numbers<T> = Vec<(&'static str, T)>;

/// Returns the layouts of requests and completions.
fn requests() -> Numbers<usize> {
    let mut all = vec![
        ("sizeof(struct ibv_wc)", size_of::<Completion>()),
        ("offsetof(struct ibv_wc, wr_id)", offset_of!(Completion, id)),
        ("offsetof(struct ibv_wc, status)", offset_of!(Completion, status)),
        ("offsetof(struct ibv_wc, opcode)", offset_of!(Completion, opcode)),
        ("offsetof(struct ibv_wc, vendor_err)", offset_of!(Completion, vendor_error)),
        ("offsetof(struct ibv_wc, byte_len)", offset_of!(Completion, bytes)),
        ("offsetof(struct ibv_wc, imm_data)", offset_of!(Completion, immediate)),
        ("offsetof(struct ibv_wc, qp_num)", offset_of!(Completion, pair)),
        ("offsetof(struct ibv_wc, src_qp)", offset_of!(Completion, sender)),
        ("offsetof(struct ibv_wc, wc_flags)", offset_of!(Completion, flags)),
        ("offsetof(struct ibv_wc, pkey_index)", offset_of!(Completion, key_index)),
        ("offsetof(struct ibv_wc, slid)", offset_of!(Completion, lid)),
        ("offsetof(struct ibv_wc, sl)", offset_of!(Completion, level)),
        ("sizeof(struct ibv_sge)", size_of::<Sge>()),
        ("sizeof(struct ibv_recv_wr)", size_of::<RecvWr>()),
        ("sizeof(struct ibv_send_wr)", size_of::<SendWr>()),
        ("offsetof(struct ibv_send_wr, wr.ud.ah)", offset_of!(SendWr, ah)),
        ("offsetof(struct ibv_send_wr, wr.ud.remote_qpn)", offset_of!(SendWr, remote_qpn)),
        ("offsetof(struct ibv_send_wr, wr.ud.remote_qkey)", offset_of!(SendWr, remote_qkey)),
    ];
    all.extend(offsets!(Sge, "ibv_sge": addr, length, lkey));
    all.extend(offsets!(RecvWr, "ibv_recv_wr": wr_id, next, sg_list, num_sge));
    all.extend(offsets!(SendWr, "ibv_send_wr": wr_id, next, sg_list, num_sge, opcode));
    all.extend(offsets!(SendWr, "ibv_send_wr": send_flags, imm_data));
    all
}

/// Returns the layouts of attributes.
fn attributes() -> Numbers<usize> {
    let mut all = vec![
        ("sizeof(union ibv_gid)", size_of::<Gid>()),
        ("_Alignof(union ibv_gid)", align_of::<Gid>()),
        ("sizeof(struct ibv_global_route)", size_of::<GlobalRoute>()),
        ("sizeof(struct ibv_ah_attr)", size_of::<AhAttr>()),
        ("sizeof(struct ibv_qp_cap)", size_of::<QpCap>()),
        ("sizeof(struct ibv_qp_init_attr)", size_of::<QpInitAttr>()),
        ("sizeof(struct ibv_qp_attr)", size_of::<QpAttr>()),
    ];
    all.extend(offsets!(GlobalRoute, "ibv_global_route": dgid, flow_label, sgid_index));
    all.extend(offsets!(GlobalRoute, "ibv_global_route": hop_limit, traffic_class));
    all.extend(offsets!(AhAttr, "ibv_ah_attr": grh, dlid, sl, src_path_bits, static_rate));
    all.extend(offsets!(AhAttr, "ibv_ah_attr": is_global, port_num));
    all.extend(offsets!(QpCap, "ibv_qp_cap": max_send_wr, max_recv_wr, max_send_sge));
    all.extend(offsets!(QpCap, "ibv_qp_cap": max_recv_sge, max_inline_data));
    all.extend(offsets!(QpInitAttr, "ibv_qp_init_attr": qp_context, send_cq, recv_cq, srq));
    all.extend(offsets!(QpInitAttr, "ibv_qp_init_attr": cap, qp_type, sq_sig_all));
    all.extend(offsets!(QpAttr, "ibv_qp_attr": qp_state, path_mtu, qkey, rq_psn, sq_psn));
    all.extend(offsets!(QpAttr, "ibv_qp_attr": dest_qp_num, qp_access_flags, cap, ah_attr));
    all.extend(offsets!(QpAttr, "ibv_qp_attr": alt_ah_attr, pkey_index, max_rd_atomic));
    all.extend(offsets!(QpAttr, "ibv_qp_attr": max_dest_rd_atomic, min_rnr_timer, port_num));
    all.extend(offsets!(QpAttr, "ibv_qp_attr": timeout, retry_cnt, rnr_retry));
    all.extend(offsets!(PortAttr, "ibv_port_attr": state, max_mtu, active_mtu, gid_tbl_len));
    all.extend(offsets!(PortAttr, "ibv_port_attr": lid, sm_lid, phys_state, link_layer, flags));
    all
}

/// Returns the layouts of the library's objects.
fn objects() -> Numbers<usize> {
    let mut all = vec![
        ("sizeof(struct ibv_context_ops)", size_of::<ContextOps>()),
        ("offsetof(struct ibv_pd, context)", offset_of!(OfContext, context)),
        ("offsetof(struct ibv_cq, context)", offset_of!(OfContext, context)),
        ("offsetof(struct ibv_ah, context)", offset_of!(OfContext, context)),
    ];
    all.extend(offsets!(Context, "ibv_context": device, ops, cmd_fd, async_fd));
    all.extend(offsets!(Context, "ibv_context": num_comp_vectors));
    all.extend(offsets!(ContextOps, "ibv_context_ops": poll_cq, req_notify_cq));
    all.extend(offsets!(ContextOps, "ibv_context_ops": post_send, post_recv));
    all.extend(offsets!(Qp, "ibv_qp": context, send_cq, recv_cq, srq, handle, qp_num));
    all.extend(offsets!(Mr, "ibv_mr": context, addr, length, handle, lkey, rkey));
    all.extend(offsets!(CompChannel, "ibv_comp_channel": context, fd, refcnt));
    all
}

/// Returns the constants, with their names in the header.
fn constants() -> Numbers<c_uint> {
    let mut all = vec![
        ("IBV_QPT_RC", QPT_RC),
        ("IBV_QPT_UD", QPT_UD),
        ("IBV_QPS_RESET", QPS_RESET),
        ("IBV_QPS_INIT", QPS_INIT),
        ("IBV_QPS_RTR", QPS_RTR),
        ("IBV_QPS_RTS", QPS_RTS),
        ("IBV_WR_SEND", WR_SEND),
        ("IBV_SEND_SIGNALED", SEND_SIGNALED),
        ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE as c_uint),
        ("IBV_WC_SUCCESS", 0),
        ("IBV_WC_WR_FLUSH_ERR", Completion::FLUSHED),
        ("IBV_WC_GRH", Completion::HAS_ROUTE),
        ("IBV_MTU_4096", 5),
        ("IBV_PORT_ACTIVE", PORT_ACTIVE),
        ("IBV_LINK_LAYER_ETHERNET", LINK_LAYER_ETHERNET.into()),
    ];
    all.extend(bits!(STATE, ACCESS_FLAGS, PKEY_INDEX, PORT, QKEY, AV, PATH_MTU, TIMEOUT));
    all.extend(bits!(RETRY_CNT, RNR_RETRY, RQ_PSN, MAX_QP_RD_ATOMIC, MIN_RNR_TIMER, SQ_PSN));
    all.extend(bits!(MAX_DEST_RD_ATOMIC, DEST_QPN));
    all
}

#[test]
fn layouts_are_those_of_the_header_where_it_is_installed() {
    let mut program = "#include <stddef.h>\n#include <infiniband/verbs.h>\n".to_owned();
    for (what, bytes) in [requests(), attributes(), objects()].concat() {
        program += &format!("_Static_assert({what} == {bytes}, \"{what}\");\n");
    }
    for (what, number) in constants() {
        program += &format!("_Static_assert({what} == {number}, \"{what}\");\n");
    }
    // It grows, and the reserve has room for what a newer library may fill.
    let (what, most) = ("sizeof(struct ibv_port_attr)", size_of::<PortAttr>());
    program += &format!("_Static_assert({what} >= 52 && {what} <= {most}, \"{what}\");\n");
    let file = std::env::temp_dir().join(format!("linerate-verbs-{}.c", std::process::id()));
    std::fs::write(&file, program).unwrap();
    let compiled = Command::new("cc").args(["-fsyntax-only", "-x", "c"]).arg(&file).output();
    std::fs::remove_file(&file).unwrap();
    match compiled {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: no C compiler: {e}");
        }
        Err(e) => panic!("cc: {e}"),
        Ok(out) if out.status.success() => {}
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stderr);
            let is_absent = text.contains("infiniband/verbs.h: No such file");
            assert!(is_absent, "{text}");
            println!("skipped: infiniband/verbs.h is not installed");
        }
    }
}
