//! The options of a port text.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use linerate_skb::{Code, Error, Result};

use super::message::SECRET_BYTES;
use super::ring::POWER_MAX;
use crate::knob;
use crate::spec::Spec;

/// Limit of the number of rings in each direction.
const RINGS_MAX: u16 = 64;
/// Limit of the number of descriptors of a ring.
const RING_MAX: u32 = 1 << POWER_MAX;
/// Default number of descriptors of a ring; the next constant is that of bytes of a buffer.
const SIZE: u32 = 1024;
const BUFFER_BYTES: u32 = 2048;
/// Longest packet, in bytes.
pub(super) const PACKET_BYTES_MAX: usize = 65_550;
/// Most descriptors of a packet that is copied or read in place. Descriptors without bytes count,
/// because a long chain of them would take long to read.
pub(super) const CHAIN_MAX: u16 = 1024;

/// The sides of a link: the client owns the memory and connects, the server maps it and listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Owns the memory, and connects.
    Client,
    /// Maps the memory, and listens.
    Server,
}

/// The part of the client's pool that the peer maps; nothing for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// The whole pool, writable: no copy in either direction.
    Write,
    /// The whole pool, read-only: no copy of packets to the peer.
    Read,
    /// Nothing: packets are copied.
    Nothing,
}

/// A port text's options, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    /// The path of the socket.
    pub path: PathBuf,
    pub role: Role,
    /// The interface's number on the socket.
    pub id: u32,
    /// The secret that a client presents or a server requires; empty if there is none.
    pub secret: Secret,
    pub peer: Peer,
    /// Rings in each direction; a queue is a pair of them.
    pub rings: u16,
    /// Descriptors of a ring, a power of two.
    pub size: u32,
    /// Longest descriptor in bytes: the size of our buffers, and the expected size of a peer's.
    pub buffer_bytes: u32,
    pub sharing: Sharing,
    /// True if the text has an option that selects what is shared.
    pub sharing_given: bool,
    /// True for a [`Reader`](super::Reader), which maps regions without rings for reading only.
    pub reads_in_place: bool,
    /// True if the peer is trusted: a server maps memory that its owner may truncate, or a client
    /// shares huge pages into which its peer may punch holes.
    pub trust: bool,
    /// Limit of the memory of a client that a server maps, in bytes.
    pub memory: u64,
}

/// A secret, which is never printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The users who may run the peer, in addition to this process's own user and root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// No other user.
    Own,
    User(u32),
    Any,
}

impl Peer {
    /// Returns true if a peer that runs as `user` is allowed; root and our own user always are.
    pub fn allows(self, user: u32) -> bool {
        user == 0
            || user == rustix::process::geteuid().as_raw()
            || match self {
                Peer::Own => false,
                Peer::User(other) => user == other,
                Peer::Any => true,
            }
    }
}

impl Config {
    /// Reads the options of `spec`.
    pub fn of(spec: &Spec) -> Result<Config> {
        Config::with(spec, Role::Client, 1)
    }

    /// Parses the options of a [`Reader`](super::Reader): a server that only receives.
    pub fn of_reader(spec: &Spec) -> Result<Config> {
        let config = Config::with(spec, Role::Server, RINGS_MAX)?;
        if config.role != Role::Server {
            return Err(spec
                .error("a reader is memif's server: its producer is the client")
                .fix("leave role out"));
        }
        Ok(Config { reads_in_place: true, ..config })
    }

    /// Returns the options of a [`Reader`](super::Reader) for `path`, with defaults for all others.
    pub fn reader_at(path: &Path) -> Result<Config> {
        let config = Config::of_reader(&Spec::parse("memif:@reader", &["memif"])?)?;
        Ok(Config { path: path.to_owned(), ..config })
    }

    /// Parses the options of `spec`; role and rings have the given defaults.
    fn with(spec: &Spec, default_role: Role, default_rings: u16) -> Result<Config> {
        let role = spec.value("role", role)?.unwrap_or(default_role);
        let sharing = spec.value("zerocopy", sharing)?;
        let trust = spec.flag("trust")?;
        let mut config = Config {
            path: PathBuf::from(&spec.arg),
            role,
            id: spec.value("id", str::parse)?.unwrap_or(0),
            secret: secret_of(spec)?,
            peer: spec.value("peer", peer)?.unwrap_or(Peer::Own),
            rings: spec.value("rings", rings)?.unwrap_or(default_rings),
            size: spec.value("size", size)?.unwrap_or(SIZE),
            buffer_bytes: spec.value("buffer", buffer)?.unwrap_or(BUFFER_BYTES),
            sharing: match role {
                Role::Client => sharing.unwrap_or(Sharing::Write),
                Role::Server => Sharing::Nothing,
            },
            sharing_given: sharing.is_some(),
            reads_in_place: false,
            trust,
            memory: 0,
        };
        let limit = spec.value("memory", memory)?;
        config.memory = match limit {
            Some(mib) => mib << 20,
            None if trust => u64::MAX,
            None => {
                let buffers = u64::from(config.rings) * u64::from(config.size);
                (4 * buffers * u64::from(config.buffer_bytes)).max(knob::PEER_MEMORY.default << 20)
            }
        };
        spec.finish()?;
        if spec.arg.is_empty() {
            return Err(spec.error("which socket?").fix("memif:/run/NAME.sock, or memif:@NAME"));
        }
        if role == Role::Server && sharing.is_some() {
            return Err(spec
                .error("only the client sets zerocopy, since the memory is the client's")
                .fix("set it at the client, or leave it out"));
        }
        if role == Role::Client && limit.is_some() {
            return Err(spec
                .error("only the server sets memory, since it maps the client's memory")
                .fix("set it at the server, or leave it out"));
        }
        Ok(config)
    }
}

fn role(text: &str) -> std::result::Result<Role, &'static str> {
    match text {
        "client" | "slave" => Ok(Role::Client),
        "server" | "master" => Ok(Role::Server),
        _ => Err("client or server"),
    }
}

fn sharing(text: &str) -> std::result::Result<Sharing, &'static str> {
    match text {
        "yes" | "on" => Ok(Sharing::Write),
        "read" => Ok(Sharing::Read),
        "no" | "off" => Ok(Sharing::Nothing),
        _ => Err("yes, read or no"),
    }
}

/// Reads the secret from the text, or from a file, which keeps it out of process lists.
fn secret_of(spec: &Spec) -> Result<Secret> {
    let said = spec.value("secret", secret)?;
    let path = spec.value("secret-file", |path| Ok::<_, String>(path.to_owned()))?;
    match (said, path) {
        (Some(_), Some(_)) => {
            Err(spec.error("secret and secret-file are both given").fix("one of them"))
        }
        (None, Some(path)) => {
            let bytes = start_of(&path).map_err(|e| {
                let what = format!("cannot read the secret in {path}");
                Error::new(Code::File, what, e.to_string())
                    .fix(format!("name a file that this user may read: ls -l {path}"))
            })?;
            let text = String::from_utf8(bytes).map_err(|_| format!("{} of UTF-8", length()));
            let kept = text.and_then(|text| secret(text.trim_end_matches(['\n', '\r'])));
            kept.map_err(|why| spec.error(format!("the secret in {path} must have {why}")))
        }
        (said, None) => Ok(said.unwrap_or_default()),
    }
}

/// Reads no more of a file than a secret with its line end: a longer file does not contain a
/// secret.
fn start_of(path: &str) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn secret(text: &str) -> std::result::Result<Secret, String> {
    match text.len() {
        // One byte less than the field, because a zero ends the secret.
        1..SECRET_BYTES if text.contains('\0') => Err("no zero byte, which ends a secret".into()),
        1..SECRET_BYTES => Ok(Secret(text.to_owned())),
        _ => Err(length()),
    }
}

fn length() -> String {
    format!("1 to {} bytes", SECRET_BYTES - 1)
}

fn peer(text: &str) -> std::result::Result<Peer, &'static str> {
    match text {
        "any" => Ok(Peer::Any),
        text => text.parse().map(Peer::User).map_err(|_| "the number of a user, or any"),
    }
}

fn memory(text: &str) -> std::result::Result<u64, String> {
    match text.parse() {
        Ok(mib) if knob::PEER_MEMORY.allows(mib) => Ok(mib),
        _ => Err(format!("{} of {}", knob::PEER_MEMORY, knob::PEER_MEMORY.unit)),
    }
}

fn rings(text: &str) -> std::result::Result<u16, String> {
    match text.parse() {
        Ok(n) if (1..=RINGS_MAX).contains(&n) => Ok(n),
        _ => Err(format!("how many, 1 to {RINGS_MAX}")),
    }
}

fn size(text: &str) -> std::result::Result<u32, String> {
    match text.parse::<u32>() {
        Ok(n) if n.is_power_of_two() && (2..=RING_MAX).contains(&n) => Ok(n),
        _ => Err(format!("a power of two from 2 to {RING_MAX}")),
    }
}

fn buffer(text: &str) -> std::result::Result<u32, &'static str> {
    match text.parse::<u32>() {
        Ok(n) if (64..=65_536).contains(&n) && n % 64 == 0 => Ok(n),
        _ => Err("a multiple of 64 from 64 to 65536"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config> {
        Config::of(&Spec::parse(text, &["memif"])?)
    }

    #[test]
    fn a_path_is_enough() {
        let expected = Config {
            path: "/run/x.sock".into(),
            role: Role::Client,
            id: 0,
            secret: Secret::default(),
            peer: Peer::Own,
            rings: 1,
            size: 1024,
            buffer_bytes: 2048,
            sharing: Sharing::Write,
            sharing_given: false,
            reads_in_place: false,
            trust: false,
            memory: 256 << 20,
        };
        assert_eq!(config("memif:/run/x.sock").unwrap(), expected);
        let text = "memif:@x,role=server,id=7,secret=s,rings=2,size=256,buffer=4096,trust=yes";
        let all = config(text).unwrap();
        assert_eq!((all.role, all.id, all.secret.0.as_str()), (Role::Server, 7, "s"));
        assert_eq!((all.rings, all.size, all.buffer_bytes, all.trust), (2, 256, 4096, true));
        assert_eq!(all.sharing, Sharing::Nothing);
        assert_eq!(config("memif:@x,zerocopy=read").unwrap().sharing, Sharing::Read);
        assert_eq!(config("memif:@x,role=slave").unwrap().role, Role::Client);
    }

    #[test]
    fn memory_is_as_much_as_the_rings_need_four_times_over() {
        let memory = |text: &str| config(text).unwrap().memory;
        assert_eq!(memory("memif:x,role=server,rings=64,size=2048"), 1 << 30);
        assert_eq!(memory("memif:x,role=server,memory=3"), 3 << 20);
        assert_eq!(memory("memif:x,role=server,trust=yes"), u64::MAX);
        assert_eq!(memory("memif:x,role=server,trust=yes,memory=3"), 3 << 20);
    }

    #[test]
    fn peers_are_own_processes_and_root_unless_others_are_named() {
        let peer = |text: &str| config(text).unwrap().peer;
        let own = rustix::process::geteuid().as_raw();
        let (other, stranger) = (own + 4711, own + 4712);
        assert!([0, own].into_iter().all(|user| peer("memif:x").allows(user)));
        assert!(!peer("memif:x").allows(other));
        let named = peer(&format!("memif:x,peer={other}"));
        assert!(named.allows(other) && named.allows(own) && !named.allows(stranger));
        assert!(peer("memif:x,peer=any").allows(stranger));
    }

    #[test]
    fn secret_is_read_from_a_file_and_shown_nowhere() {
        let file = std::env::temp_dir().join(format!("linerate-secret-{}", std::process::id()));
        std::fs::write(&file, "s3cret\n").unwrap();
        let read = config(&format!("memif:x,secret-file={}", file.display()));
        std::fs::remove_file(&file).unwrap();
        let read = read.unwrap();
        assert_eq!(read.secret.0, "s3cret");
        let absent = config("memif:x,secret-file=/nosuch/file").unwrap_err();
        assert_eq!(
            (absent.code, &*absent.what),
            (Code::File, "cannot read the secret in /nosuch/file")
        );
        assert!(!format!("{read:?}").contains("s3cret"));
        for text in ["memif:x,secret=s3cret,size=3", "memif:x,ring=2,secret=s3cret"] {
            let e = config(text).unwrap_err();
            assert!(!e.to_string().contains("s3cret") && e.to_string().contains("secret="), "{e}");
        }
    }

    #[test]
    fn secret_file_with_a_zero_byte_or_without_text_is_refused() {
        let file = std::env::temp_dir().join(format!("linerate-secrets-{}", std::process::id()));
        for (bytes, why) in [
            (&[0; 8][..], "no zero byte, which ends a secret"),
            (b"\0s", "no zero byte, which ends a secret"),
            (b"s\0\n", "no zero byte, which ends a secret"),
            (b"s\xff", "1 to 23 bytes of UTF-8"),
        ] {
            std::fs::write(&file, bytes).unwrap();
            let e = config(&format!("memif:x,role=server,secret-file={}", file.display()));
            let e = e.unwrap_err();
            assert!(e.code == Code::PortSyntax && e.why.ends_with(why), "{bytes:?}: {e}");
        }
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_reader_is_a_server_of_many_rings() {
        let reader = |text: &str| Config::of_reader(&Spec::parse(text, &["memif"])?);
        let said = reader("memif:/run/x.sock").unwrap();
        assert_eq!(said, Config::reader_at(Path::new("/run/x.sock")).unwrap());
        assert_eq!((said.role, said.rings, said.reads_in_place), (Role::Server, 64, true));
        let said = reader("memif:@x,role=server,rings=2,id=3,secret=s,trust=yes").unwrap();
        assert_eq!((said.rings, said.id, said.trust), (2, 3, true));
        for (text, why) in [
            ("memif:x,role=client", "memif's server"),
            ("memif:x,zerocopy=read", "only the client sets zerocopy"),
            ("memif:", "which socket"),
        ] {
            let e = reader(text).unwrap_err();
            assert!(e.why.contains(why), "{text}: {e}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("memif:", "which socket"),
            ("memif:x,role=peer", "client or server"),
            ("memif:x,rings=0", "1 to 64"),
            ("memif:x,size=1000", "power of two"),
            ("memif:x,size=32768", "to 16384"),
            ("memif:x,buffer=100", "multiple of 64"),
            ("memif:x,secret=", "1 to 23"),
            ("memif:x,secret=123456789012345678901234", "1 to 23"),
            ("memif:x,role=server,zerocopy=yes", "only the client sets zerocopy"),
            ("memif:x,memory=64", "only the server sets memory"),
            ("memif:x,peer=root", "number of a user"),
            ("memif:x,memory=0", "1..=1048576 of MiB"),
            ("memif:x,secret=s,secret-file=/dev/null", "are both given"),
            ("memif:x,secret-file=/dev/null", "the secret in /dev/null must have 1 to 23 bytes"),
            ("memif:x,id=-1", "id=-1"),
            ("memif:x,ring=2", "no option 'ring'"),
        ] {
            let e = config(text).unwrap_err();
            assert!(e.why.contains(why), "{text}: {e}");
        }
    }
}
