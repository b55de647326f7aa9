//! The drivers there are: the one place that knows them all.

use linerate_skb::{Pool, Result};
use linerate_sys::capability::Capabilities;

use crate::driver::{Driver, Opened};
use crate::spec::Spec;
use crate::{r#gen, memif, null, packet, pcap, sink, tap, xdp};

/// The drivers of this crate. `ring` is not among them: its two ends are made together, by
/// [`Port::pair`](crate::Port::pair) or by an engine that knows both.
#[must_use]
pub fn drivers() -> &'static [&'static dyn Driver] {
    &[
        &r#gen::Gen,
        &memif::Memif,
        &null::Null,
        &packet::Packet,
        &pcap::Pcap,
        &sink::Sink,
        &tap::Tap,
        &xdp::Xdp,
    ]
}

/// Opens the device that `spec` names with the driver that it names.
///
/// # Errors
/// As [`Driver::open`].
pub fn open(spec: &Spec, pool: &Pool) -> Result<Opened> {
    driver_of(spec)?.open(spec, pool)
}

/// Capabilities that opening all ports of `specs` takes.
#[must_use]
pub fn capabilities<'a>(specs: impl IntoIterator<Item = &'a Spec>) -> Capabilities {
    let of = |spec| driver_of(spec).map_or(Capabilities::NONE, |driver| driver.capabilities(spec));
    specs.into_iter().map(of).fold(Capabilities::NONE, Capabilities::and)
}

/// The driver that `spec` names.
///
/// # Errors
/// `E-PORT-SYNTAX` for a ring, whose two ends only an engine or `Port::pair` can open.
pub fn driver_of(spec: &Spec) -> Result<&'static dyn Driver> {
    drivers().iter().copied().find(|d| d.name() == spec.driver).ok_or_else(|| {
        spec.error("a ring's two ends are opened together")
            .fix("Port::pair() in a program; in an engine name both ends ring:NAME")
    })
}

#[cfg(test)]
mod tests;
