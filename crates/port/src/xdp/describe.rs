//! The texts that report the properties of an opened port, and what it lacks.

use linerate_skb::Pool;
use linerate_sys::bpf::Mode;
use linerate_sys::netif::{Interface, TxQueues};

use super::config::Config;
use super::{foreign, hold, spread};
use crate::host::filter::Filter;

/// Returns a message if the fill rings of all queues take the whole pool.
pub(super) fn few_frames(config: &Config, queues: usize, pool: &Pool) -> Option<String> {
    let (filled, frames) = (queues * config.lens().fill as usize, pool.frames());
    (config.filter != Filter::Nothing && filled >= frames).then(|| {
        format!("frames: its fill rings can hold {filled} and the pool has {frames}, so that a program may find none to send, and another port none to receive into: a larger pool, or a shorter ring")
    })
}

/// Returns a message if some of `queues` send nothing, because the interface has fewer transmit
/// queues.
pub(super) fn silent(config: &Config, there: TxQueues, queues: &[u32]) -> Option<String> {
    let (name, count) = (&config.interface, there.count);
    let silent: Vec<u32> = queues.iter().copied().filter(|queue| *queue >= count).collect();
    let needed = silent.last()?.saturating_add(1);
    let fix = match there.is_combined {
        _ if needed > there.most && count == 1 => format!("{},queues=0", config.text()),
        _ if needed > there.most => format!("{},queues=0-{}", config.text(), count - 1),
        true => format!("ethtool -L {name} combined {needed}"),
        false => format!("ethtool -L {name} tx {needed}"),
    };
    let s = if count == 1 { "" } else { "s" };
    let does = match (config.filter == Filter::Nothing, silent.len()) {
        (true, 1) => "sends nothing",
        (true, _) => "send nothing",
        (false, 1) => "only receives",
        (false, _) => "only receive",
    };
    let which = numbers(&silent);
    Some(format!("queues: {name} has {count} transmit queue{s}, so {which} {does}: {fix}"))
}

/// Returns a message for each option that has no effect because the port only sends.
pub(super) fn without_effect(config: &Config) -> Vec<String> {
    let no_hold = config.hold.is_some() && hold::wanted(config).is_none();
    let no_spread = config.spread.is_some() && spread::wanted_by(config).is_none();
    let mut options: Vec<String> = config.unused.iter().map(ToString::to_string).collect();
    options.extend(no_hold.then(|| "hold".to_owned()));
    options.extend(no_spread.then(|| "rss".to_owned()));
    let is_refused = config.promisc == Some(true) && !config.is_promiscuous();
    options.extend(is_refused.then(|| "promisc".to_owned()));
    options.iter().map(|option| format!("{option}: this port only sends")).collect()
}

/// Returns the text that reports the properties of the opened port.
pub(super) fn describe(
    config: &Config,
    interface: &Interface,
    mode: Option<Mode>,
    zero_copy: bool,
    queues: &[u32],
) -> String {
    let taken = match &config.map {
        Some(_) if config.filter != Filter::Nothing => foreign::feeder(interface),
        _ => config.filter.diverts(),
    };
    let mut text = mode_text(&taken, mode, zero_copy, queues);
    if let Some(by) = spread::describe(config, interface) {
        text += &format!(", {by}");
    }
    if let Some(held) = hold::describe(interface) {
        text += &format!(", {held}");
    }
    if config.is_promiscuous() {
        text += ", promiscuous";
    }
    text
}

/// Returns the text that reports the mode of the opened port, and the packets it takes.
fn mode_text(taken: &str, mode: Option<Mode>, zero_copy: bool, queues: &[u32]) -> String {
    let attached = match mode {
        Some(Mode::Native) => "native ",
        Some(Mode::Generic) => "generic ",
        None => "",
    };
    let copy = if zero_copy { "zero-copy" } else { "copy" };
    format!("AF_XDP {attached}{copy}, {taken}, {}", numbers(queues))
}

/// Returns a text with the numbers of `queues`, which are in order.
pub(super) fn numbers(queues: &[u32]) -> String {
    match queues {
        [one] => format!("queue {one}"),
        [first, .., last] if (last - first) as usize + 1 == queues.len() => {
            format!("queues {first}-{last}")
        }
        some => format!("queues {some:?}"),
    }
}
