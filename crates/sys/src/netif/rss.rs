//! Receive-side scaling, the division of a device's packets among its queues: reads and temporarily
//! changes the table and the key, and counts the rules.
//!
//! Source: `struct ethtool_rxfh` and `struct ethtool_rxnfc`, include/uapi/linux/ethtool.h.

use std::time::Duration;

use rustix::io::Errno;

use super::{Interface, ioctl};
use crate::capability::Capabilities;
use crate::error::{Code, Error, Result};
use crate::wait::poll_readable;

const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_SRSSH: u32 = 0x47;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
/// 32-bit words of a request before the table: command, context, length of the table, length of the
/// key, hash function with the transformation of its input, reserved.
const HEAD_WORDS: usize = 6;
/// Most entries of a table and bytes of a key that are accepted: far more than devices have.
const TABLE_MAX: u32 = 1 << 16;
const KEY_BYTES_MAX: u32 = 1 << 10;
/// Table length in a request that keeps the table.
const TABLE_KEPT: u32 = u32::MAX;
/// Table length in a request that restores the driver's default.
const TABLE_DEFAULT: u32 = 0;
/// Hash function in a request that keeps the function (`ETH_RSS_HASH_NO_CHANGE`).
const FUNCTION_KEPT: u8 = 0;

/// Most attempts to restore a division, and the interval between two.
const TRIES_MAX: usize = 8;
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A device's division of packets among its queues.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Rss {
    /// Queues, indexed by the remainder of a packet's hash divided by the table's length.
    pub table: Vec<u32>,
    /// True if the table equals the default for the number of the device's queues. The kernel does
    /// not tell if a user has written it.
    pub is_default: bool,
    /// Key of the hash; empty if the device does not report it.
    pub key: Vec<u8>,
    /// Bit of the hash function: 1 stands for Toeplitz.
    pub function: u8,
    /// Bits for what the device does to a packet's addresses and ports before it hashes them
    /// (`input_xfrm`, Linux 6.8).
    transform: u8,
}

impl Rss {
    /// Returns the queue for packets with this hash, unless a rule decides otherwise.
    #[must_use]
    pub fn queue_of(&self, hash: u32) -> Option<u32> {
        self.table.get(hash as usize % self.table.len().max(1)).copied()
    }

    /// Sets the table, the key, or both; an empty one is kept. A table that was the default
    /// ([`is_default`](Rss::is_default)) is set as the default for the present number of queues, so
    /// that it follows that number. This changes the machine.
    ///
    /// # Errors
    /// As [`Interface::set_rss`]; `E-SYSTEM` for a table that the device does not take.
    pub fn set(&self, interface: &Interface) -> Result<()> {
        interface.restore_rss(self, interface.rss()?.transform)
    }

    /// Returns the parts of `before` to restore after this division was set: the table and the key,
    /// each if `now` still has this one's and not the former. A table that was the default is
    /// restored also if this one is equal, because a written one no longer follows the number of
    /// queues. Returns `None` if there is nothing to restore.
    #[must_use]
    pub fn undone(&self, before: &Rss, now: &Rss) -> Option<Rss> {
        let mut back = Rss::default();
        let is_former = before.table == now.table && !before.is_default;
        if !self.table.is_empty() && self.table == now.table && !is_former {
            back.table.clone_from(&before.table);
            back.is_default = before.is_default;
        }
        if !self.key.is_empty() && self.key == now.key && before.key != now.key {
            back.key.clone_from(&before.key);
        }
        (back != Rss::default()).then_some(back)
    }

    /// Returns the name of the hash function.
    #[must_use]
    pub fn function_name(&self) -> &'static str {
        match self.function {
            1 => "Toeplitz",
            2 => "XOR",
            4 => "CRC32",
            _ => "unknown hash",
        }
    }

    /// Parses an answer with a table of `table` entries and a key of `key` bytes.
    fn read(words: &[u32], table: usize, key: usize) -> Rss {
        let rest = words.get(HEAD_WORDS..).unwrap_or_default();
        let (entries, behind) = rest.split_at(table.min(rest.len()));
        let bytes = behind.iter().flat_map(|word| word.to_ne_bytes());
        let [function, transform, ..] = words.get(4).map_or([0; 4], |word| word.to_ne_bytes());
        let (table, key) = (entries.to_vec(), bytes.take(key).collect());
        Rss { table, is_default: false, key, function, transform }
    }

    /// Returns the parts of a wanted table and key that have to be written in place of `before`.
    fn to_write(table: &[u32], key: &[u8], before: &Rss) -> Rss {
        let mut wanted = Rss { table: table.to_vec(), key: key.to_vec(), ..Rss::default() };
        // A default table is written although it is equal: unwritten, it follows the number of
        // queues, and then leads to queues that were not asked for. Any other equal one is not
        // written, because a default of the driver's own could not be restored as such.
        if wanted.table == before.table && !before.is_default {
            wanted.table.clear();
        }
        if wanted.key == before.key {
            wanted.key.clear();
        }
        wanted
    }

    /// Returns the request that sets the table and the key; an empty one is kept. The hash function
    /// is kept, and `transform` is the present one: 0 would turn it off, and Linux before 6.8 has
    /// no value that keeps it.
    fn request(&self, transform: u8) -> Vec<u32> {
        let entries = match self.table.len() as u32 {
            0 => TABLE_KEPT,
            n => n,
        };
        let kept = u32::from_ne_bytes([FUNCTION_KEPT, transform, 0, 0]);
        let mut words = vec![ETHTOOL_SRSSH, 0, entries, self.key.len() as u32, kept, 0];
        words.extend(&self.table);
        words.extend(self.key.chunks(4).map(|four| {
            let mut bytes = [0; 4];
            bytes[..four.len()].copy_from_slice(four);
            u32::from_ne_bytes(bytes)
        }));
        words
    }

    /// Returns the request that sets the driver's default table. It has no key, because the kernel
    /// reads the key of such a request behind a whole table, which is not there.
    ///
    /// Source: net/ethtool/ioctl.c `ethtool_set_rxfh`.
    fn request_default(transform: u8) -> Vec<u32> {
        let mut words = Rss::default().request(transform);
        words[2] = TABLE_DEFAULT;
        words
    }

    /// Returns true if the table is the default for this number of queues.
    ///
    /// Source: `ethtool_rxfh_indir_default`, include/linux/ethtool.h.
    fn is_default_of(&self, queues: u32) -> bool {
        let mut entries = (0..queues.max(1)).cycle().zip(&self.table);
        !self.table.is_empty() && entries.all(|(default, entry)| default == *entry)
    }
}

/// A changed division of a device's packets. Dropping the guard restores what was changed, the
/// table and the key each unless another program has changed it meanwhile.
#[derive(Debug)]
#[must_use = "dropping it restores the former RSS table"]
pub struct RssGuard {
    interface: Interface,
    /// The division before the change; its table counts as the default only if another one was
    /// written.
    before: Rss,
    set: Rss,
}

impl Interface {
    /// Reads the device's division of packets among its queues.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if it does not, or its driver does not tell; `E-NODEV` if it is gone.
    pub fn rss(&self) -> Result<Rss> {
        let mut head = vec![ETHTOOL_GRSSH, 0, 0, 0, 0, 0];
        self.words(&mut head, "ETHTOOL_GRSSH")?;
        let (table, key) = (head[2], head[3]);
        if table == 0 || table > TABLE_MAX || key > KEY_BYTES_MAX {
            let why =
                format!("its driver reports a table of {table} entries and a key of {key} bytes");
            return Err(Error::new(Code::Unsupported, self.no_rss(), why));
        }
        let (table, key) = (table as usize, key as usize);
        let mut words = vec![0; HEAD_WORDS + table + key.div_ceil(4)];
        words[..4].copy_from_slice(&[ETHTOOL_GRSSH, 0, table as u32, key as u32]);
        self.words(&mut words, "ETHTOOL_GRSSH")?;
        let mut rss = Rss::read(&words, table, key);
        rss.is_default = self.rx_queues().is_ok_and(|queues| rss.is_default_of(queues));
        Ok(rss)
    }

    /// Returns the number of rules that assign packets to queues before the hash does (`ethtool
    /// -n`).
    ///
    /// # Errors
    /// As [`Interface::rss`].
    pub fn flow_rules(&self) -> Result<u32> {
        let mut words = vec![0; RULE_WORDS];
        words[0] = ETHTOOL_GRXCLSRLCNT;
        self.words(&mut words, "ETHTOOL_GRXCLSRLCNT")?;
        Ok(words[RULE_COUNT_AT])
    }

    /// Sets the table, the key, or both; an empty one is kept. This changes the machine, until the
    /// guard is dropped.
    ///
    /// # Errors
    /// As [`Interface::rss`]; `E-PERM` without CAP_NET_ADMIN; `E-PORT-SYNTAX` for a length that is
    /// not the device's or a queue that it does not have.
    pub fn set_rss(self, table: &[u32], key: &[u8]) -> Result<RssGuard> {
        let mut before = self.rss()?;
        let is_odd = |len: usize, its: usize| len != 0 && len != its;
        if is_odd(table.len(), before.table.len()) || is_odd(key.len(), before.key.len()) {
            let [entries, bytes] = [before.table.len(), before.key.len()];
            let why = format!("it has a table of {entries} entries and a key of {bytes} bytes");
            return Err(Error::new(Code::PortSyntax, self.no_rss(), why).fix(self.look()));
        }
        let mut asked = Rss::to_write(table, key, &before);
        let mut written = self.write_rss(&asked, before.transform);
        let is_refused = written.as_ref().is_err_and(|e| e.code == Code::Unsupported);
        if is_refused && asked.table == before.table {
            // The device has the wanted table, and none can be written.
            asked.table.clear();
            written = self.write_rss(&asked, before.transform);
        }
        // A table that was not written is the default still.
        before.is_default &= !asked.table.is_empty();
        // Read the table back from the device, because some devices store less than was written.
        match written.and_then(|()| self.rss()) {
            Ok(set) => Ok(RssGuard { interface: self, before, set }),
            Err(e) => {
                // There is no guard that would restore the former division. A device that refuses
                // the table may have stored the key.
                let now = self.rss().unwrap_or_else(|_| asked.clone());
                if let Some(back) = asked.undone(&before, &now) {
                    let _ = self.restore_rss(&back, before.transform);
                }
                Err(e)
            }
        }
    }

    /// Sets the table and the key of `rss`; `transform` is the device's present one.
    fn write_rss(&self, rss: &Rss, transform: u8) -> Result<()> {
        // The kernel refuses a request that sets nothing.
        if rss.table.is_empty() && rss.key.is_empty() {
            return Ok(());
        }
        self.words(&mut rss.request(transform), "ETHTOOL_SRSSH")
    }

    /// Sets the table and the key of `rss` as [`Interface::write_rss`] does; a default table as
    /// such, because a written one counts as the user's: it stays when the number of queues
    /// changes.
    ///
    /// # Errors
    /// `E-SYSTEM` also for a division that the device does not take any more: no text was wrong.
    fn restore_rss(&self, rss: &Rss, transform: u8) -> Result<()> {
        self.write_former(rss, transform).map_err(of_no_text)
    }

    fn write_former(&self, rss: &Rss, transform: u8) -> Result<()> {
        let set = || self.words(&mut Rss::request_default(transform), "ETHTOOL_SRSSH");
        // The number of queues may have changed since, and the default with it. The table is read
        // back, because the default of this driver may be another one.
        let is_restored = |now: Rss| now.is_default || now.table == rss.table;
        let only_key = || Rss { table: Vec::new(), ..rss.clone() };
        if rss.is_default && set().is_ok() && self.rss().is_ok_and(is_restored) {
            return self.write_rss(&only_key(), transform);
        }
        let written = self.write_rss(rss, transform);
        let is_refused = written.as_ref().is_err_and(|e| e.code == Code::Unsupported);
        if is_refused && self.rss().is_ok_and(|now| now.table == rss.table) {
            // The device has the former table, and none can be written.
            return self.write_rss(&only_key(), transform);
        }
        written
    }

    /// Makes an ethtool request whose lengths are in `words`.
    fn words(&self, words: &mut [u32], call: &str) -> Result<()> {
        if words_of(words).is_none_or(|needed| needed > words.len()) {
            return Err(Error::os(Code::System, self.no_rss(), call, Errno::INVAL));
        }
        let mut request = self.named()?;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        // SAFETY: the pointer in the ifreq is that of the command's structure. `words` has all the
        // bytes that the kernel reads and writes there, as checked above, and outlives the call.
        let done = unsafe { ioctl(&self.socket, libc::SIOCETHTOOL as libc::Ioctl, &mut request) };
        done.map_err(|e| match e {
            Errno::OPNOTSUPP => Error::os(Code::Unsupported, self.no_rss(), call, e).fix(
                "use a device with receive-side scaling; for a device of one queue use Steering",
            ),
            Errno::INVAL => Error::os(Code::PortSyntax, self.no_rss(), call, e).fix(self.look()),
            Errno::PERM => Error::os(Code::Permission, self.no_rss(), call, e)
                .fix(Capabilities::NET_ADMIN.remedy()),
            e => super::refused(&self.name, call, e),
        })
    }

    fn no_rss(&self) -> String {
        format!("cannot use the receive-side scaling of {}", self.name)
    }

    fn look(&self) -> String {
        format!("ethtool -x {}", self.name)
    }
}

/// Index of `rule_cnt` in `struct ethtool_rxnfc` in words: after the command, the flow type, 64
/// bits of data and a rule of 168 bytes.
const RULE_COUNT_AT: usize = (4 + 4 + 8 + 168) / 4;
/// 32-bit words of `struct ethtool_rxnfc` without rules: its length is a multiple of 64 bits.
const RULE_WORDS: usize = RULE_COUNT_AT + 2;

/// Returns the number of words that the kernel reads or writes for the request in `words`; `None`
/// for a command that is not known here.
fn words_of(words: &[u32]) -> Option<usize> {
    match *words {
        [ETHTOOL_GRXCLSRLCNT, ..] => Some(RULE_WORDS),
        [ETHTOOL_GRSSH | ETHTOOL_SRSSH, _, table, key, ..] => {
            let table = if table == TABLE_KEPT { 0 } else { table as usize };
            Some(HEAD_WORDS + table + (key as usize).div_ceil(4))
        }
        _ => None,
    }
}

impl RssGuard {
    /// Returns the division that was set, as the device reported it then.
    #[must_use]
    pub fn written(&self) -> &Rss {
        &self.set
    }

    /// Returns the interface.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Returns what dropping the guard writes, if the division is `now`.
    fn former(&self, now: &Rss) -> Option<Rss> {
        self.set.undone(&self.before, now)
    }

    /// Restores what was changed, and nothing else: a driver that reports a key may refuse to set
    /// one, and the table with it.
    fn restore(&self) -> Result<()> {
        let now = self.interface.rss()?;
        self.former(&now).map_or(Ok(()), |back| self.interface.restore_rss(&back, now.transform))
    }
}

impl Drop for RssGuard {
    fn drop(&mut self) {
        retried(|| self.restore(), || self.interface.named().is_ok());
    }
}

/// Calls `step` until it succeeds, or fails for a reason that stays: while an interface that `is_there`
/// is being renamed, or its device is reset, requests fail for some milliseconds.
fn retried(mut step: impl FnMut() -> Result<()>, is_there: impl Fn() -> bool) {
    for _ in 0..TRIES_MAX {
        match step() {
            Err(e) if matches!(e.code, Code::System | Code::NoDevice) && is_there() => {
                let _ = poll_readable(&[], Some(RETRY_INTERVAL));
            }
            _ => return,
        }
    }
}

/// Returns the error of a request that was not made for a port's text.
fn of_no_text(e: Error) -> Error {
    match e.code {
        Code::PortSyntax => Error { code: Code::System, ..e },
        _ => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_testing::{in_netns, ip};

    #[test]
    fn a_device_without_rss_says_so_and_why() {
        in_netns(|| {
            ip("link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1");
            ip("tuntap add t0 mode tap");
            for name in ["v0", "t0", "lo"] {
                let interface = Interface::open(name).unwrap();
                let e = interface.rss().unwrap_err();
                assert!(e.code == Code::Unsupported && e.what.ends_with(name), "{e}");
                assert_eq!(interface.flow_rules().unwrap_err().code, Code::Unsupported);
                let e = interface.set_rss(&[0], &[]).unwrap_err();
                assert!(e.code == Code::Unsupported && e.fix.contains("Steering"), "{e}");
            }
            let gone = Interface::open("v0").unwrap();
            ip("link del v0");
            assert_eq!(gone.rss().unwrap_err().code, Code::NoDevice);
        });
    }

    #[test]
    fn table_and_key_are_restored_each_unless_it_was_changed_since() {
        let rss = |table: &[u32], key: &[u8]| Rss {
            table: table.to_vec(),
            key: key.to_vec(),
            function: 1,
            ..Rss::default()
        };
        let (before, set) = (rss(&[0, 1], &[7, 7]), rss(&[0, 0], &[1, 2]));
        let back =
            |set: &Rss, now: &Rss| set.undone(&before, now).map(|back| (back.table, back.key));
        assert_eq!(back(&set, &set), Some((vec![0, 1], vec![7, 7])));
        assert_eq!(back(&set, &rss(&[1, 1], &[1, 2])), Some((vec![], vec![7, 7])));
        assert_eq!(back(&set, &rss(&[0, 0], &[9, 9])), Some((vec![0, 1], vec![])));
        assert_eq!(back(&set, &rss(&[1, 1], &[9, 9])), None);
        assert_eq!(back(&rss(&[0, 0], &[]), &rss(&[0, 0], &[7, 7])), Some((vec![0, 1], vec![])));
        assert_eq!(back(&rss(&[0, 0], &[]), &before), None);
        let key = rss(&[], &[1, 2]);
        assert_eq!(back(&key, &key), Some((vec![], vec![7, 7])), "the table was not set");
        assert_eq!(back(&before, &before), None);
    }

    #[test]
    fn a_guard_that_changed_the_table_alone_writes_no_key() {
        let rss = |table: [u32; 2]| Rss {
            table: table.to_vec(),
            key: vec![7, 7],
            function: 1,
            ..Rss::default()
        };
        let interface = Interface::open("lo").unwrap();
        let guard = RssGuard { interface, before: rss([0, 1]), set: rss([0, 0]) };
        let back = guard.former(&rss([0, 0])).unwrap();
        assert_eq!((&back.table[..], &back.key[..]), (&[0, 1][..], &[][..]));
        assert_eq!(back.request(0)[3], 0, "bytes of the key");
        assert_eq!(guard.former(&rss([1, 1])), None, "changed by another program");
    }

    #[test]
    fn restoring_is_tried_again_while_the_interface_is_being_renamed() {
        for (code, is_there, fails, calls) in [
            (Code::System, true, 2, 3),
            (Code::NoDevice, true, usize::MAX, TRIES_MAX),
            (Code::NoDevice, false, usize::MAX, 1),
            (Code::Unsupported, true, usize::MAX, 1),
        ] {
            let mut called = 0;
            let step = || {
                called += 1;
                if called > fails { Ok(()) } else { Err(Error::new(code, "a", "b")) }
            };
            retried(step, || is_there);
            assert_eq!(called, calls, "{code} {fails}");
        }
    }

    #[test]
    fn device_that_refuses_a_former_division_is_no_fault_of_a_text() {
        let code = |code| of_no_text(Error::new(code, "a", "b")).code;
        assert_eq!(code(Code::PortSyntax), Code::System);
        assert_eq!(code(Code::Permission), Code::Permission);
    }

    #[test]
    fn a_request_that_is_shorter_than_its_lengths_say_is_not_made() {
        let rss = Rss { table: vec![0, 1, 2], key: vec![7; 5], ..Rss::default() };
        for request in [rss.request(0), Rss::default().request(0)] {
            assert_eq!(words_of(&request), Some(request.len()));
        }
        assert_eq!(words_of(&[ETHTOOL_GRXCLSRLCNT]), Some(48));
        let mut words = vec![ETHTOOL_GRSSH, 0, 4, 8, 0, 0];
        assert_eq!(words_of(&words), Some(HEAD_WORDS + 4 + 2));
        let interface = Interface::open("lo").unwrap();
        for call in 0..2 {
            words[0] += call;
            let e = interface.words(&mut words, "SIOCETHTOOL").unwrap_err();
            assert!(e.code == Code::System && e.why.contains("nvalid"), "{e}");
        }
        assert_eq!(words_of(&[1, 0, 0, 0]), None, "another command");
    }

    #[test]
    fn default_table_is_restored_as_the_default_and_not_as_one_that_was_set() {
        let rss = |table: &[u32]| Rss { table: table.to_vec(), key: vec![7; 5], ..Rss::default() };
        let default = rss(&[0, 1, 2, 0, 1]);
        assert!(default.is_default_of(3) && rss(&[0, 1]).is_default_of(4));
        for queues in [0, 1, 2, 4] {
            assert!(!default.is_default_of(queues), "{queues}");
        }
        assert!(!Rss::default().is_default_of(3), "no table to restore");
        let (words, set) = (Rss::request_default(2), default.request(2));
        assert_eq!(words[..4], [ETHTOOL_SRSSH, 0, 0, 0], "length 0 stands for the default");
        assert_eq!((&words[4..], words.len()), (&set[4..HEAD_WORDS], HEAD_WORDS));
        assert_eq!(words_of(&words), Some(words.len()));
    }

    #[test]
    fn default_table_is_written_although_it_is_the_wanted_one_and_is_restored_as_the_default() {
        let rss = |table: &[u32], is_default| {
            let table = table.to_vec();
            Rss { table, is_default, key: vec![7], ..Rss::default() }
        };
        let (default, chosen) = (rss(&[0, 1, 0], true), rss(&[1, 1, 0], false));
        let asked = |before: &Rss| Rss::to_write(&before.table, &[7], before);
        assert_eq!((asked(&default).table, asked(&default).key), (vec![0, 1, 0], vec![]));
        assert_eq!(asked(&chosen), Rss::default(), "it stays as it is");
        let back = |set: &Rss, before: &Rss, now: &Rss| {
            set.undone(before, now).map(|back| (back.table, back.is_default))
        };
        // The restored table is the default one, whatever the number of queues is then.
        let former = Some((vec![0, 1, 0], true));
        assert_eq!(back(&asked(&default), &default, &default), former);
        assert_eq!(back(&chosen, &default, &chosen), former);
        assert_eq!(back(&chosen, &default, &rss(&[0, 0, 0], false)), None, "changed since");
        let other = rss(&[0, 0, 0], false);
        assert_eq!(back(&other, &chosen, &other), Some((vec![1, 1, 0], false)));
        assert_eq!(back(&chosen, &chosen, &chosen), None);
    }

    #[test]
    fn a_division_is_read_as_it_is_written() {
        let key: Vec<u8> = (0..42).collect();
        let is_default = false;
        let rss = Rss { table: vec![0, 1, 2, 1], is_default, key, function: 1, transform: 2 };
        let mut words = rss.request(rss.transform);
        let kept = u32::from_ne_bytes([0, 2, 0, 0]);
        assert_eq!(words[..6], [ETHTOOL_SRSSH, 0, 4, 42, kept, 0]);
        assert_eq!(words.len(), HEAD_WORDS + 4 + 11);
        words[4] = u32::from_ne_bytes([1, 2, 0, 0]);
        assert_eq!(Rss::read(&words, 4, 42), rss);
        assert_eq!([4, 5, 6, 7].map(|hash| rss.queue_of(hash).unwrap()), [0, 1, 2, 1]);
        assert_eq!((rss.function_name(), Rss::default().queue_of(7)), ("Toeplitz", None));
        // An empty table is kept, not reset to the driver's own.
        assert_eq!(Rss::default().request(0)[2], TABLE_KEPT);
        // An answer that is cut short has what is there.
        assert_eq!(Rss::read(&words[..8], 4, 42).table, [0, 1]);
        assert_eq!(Rss::read(&[], 4, 42), Rss::default());
    }
}
