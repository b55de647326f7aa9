//! The most packets for one doorbell of a device: post 002's `tx_batch_skb`.

use std::fmt;
use std::str::FromStr;

use linerate_port::{Code, Error, Result, units};

use crate::knob::TX_BATCH;

/// Number of packets that [`TxBatch::Auto`] always sends with one doorbell, whatever their bytes.
pub(crate) const AUTO_PACKETS: usize = TX_BATCH.default as usize;
/// Most bytes that [`TxBatch::Auto`] sends with one doorbell if there are more packets than
/// [`AUTO_PACKETS`].
pub(crate) const AUTO_BYTES: u64 = 256 << 10;

/// A cap on the packets of one transmit call. The call rings the device's doorbell once at most;
/// several times if superframes are cut in front of the device.
///
/// It never waits for packets: the packets that a turn has gathered are divided into calls of at
/// most that many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TxBatch {
    /// All waiting packets; if there are more than 64, they are divided after each 256 KiB.
    #[default]
    Auto,
    /// At most this number of packets; 1 turns batching off: each packet gets a call and a
    /// doorbell.
    Packets(u32),
}

impl TxBatch {
    /// Returns the cap with its number limited to the knob's range.
    #[must_use]
    pub fn clamped(self) -> TxBatch {
        match self {
            TxBatch::Auto => TxBatch::Auto,
            TxBatch::Packets(n) => TxBatch::Packets(TX_BATCH.clamp(n.into()) as u32),
        }
    }
}

impl FromStr for TxBatch {
    type Err = Error;

    /// Reads `auto`, or a number of packets.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` for anything else.
    fn from_str(text: &str) -> Result<TxBatch> {
        if matches!(text, "auto") {
            return Ok(TxBatch::Auto);
        }
        let packets = units::count(text).ok().filter(|packets| TX_BATCH.allows(*packets));
        packets.map(|packets| TxBatch::Packets(packets as u32)).ok_or_else(|| {
            let why = format!("'{text}' is not a number of packets");
            Error::new(Code::PortSyntax, format!("tx_batch={text}"), why).fix(format!(
                "use {} to {} packets a doorbell, 1 for no batches, or auto",
                TX_BATCH.min, TX_BATCH.max
            ))
        })
    }
}

impl fmt::Display for TxBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TxBatch::Auto => f.write_str("auto"),
            TxBatch::Packets(packets) => packets.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_auto_or_a_number_of_packets_and_reads_back() {
        for text in ["auto", "1", "2", "64", "1024"] {
            assert_eq!(text.parse::<TxBatch>().unwrap().to_string(), text);
        }
        for text in ["0", "1025", "-1", "off", "", "64k", "99999999999999999999"] {
            let e = text.parse::<TxBatch>().unwrap_err();
            assert!(e.fix.contains("1 to 1024") && e.fix.contains("auto"), "{text}: {e}");
        }
        assert_eq!(TxBatch::Packets(0).clamped(), TxBatch::Packets(1));
    }
}
