//! The options of a port text.

use std::path::{Path, PathBuf};

use linerate_skb::Result;

use super::message::SECRET_BYTES;
use crate::spec::Spec;

/// Rings a direction, at most.
const RINGS_MAX: u16 = 64;
/// Descriptors of the longest ring: what the protocol's own drivers allow.
const RING_MAX: u32 = 1 << 14;
/// Descriptors of a ring, and bytes of a buffer, where nothing is said.
const SIZE: u32 = 1024;
const BUFFER_BYTES: u32 = 2048;
/// Bytes of the longest packet.
pub(super) const PACKET_BYTES_MAX: usize = 65_550;

/// The sides: one owns the memory and connects, the other maps it and listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Owns the memory, and connects.
    Client,
    /// Maps it, and listens.
    Server,
}

/// The part of the client's pool that the peer maps; of a server, its way of mapping regions
/// without rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// All of it, to write: no copy either way.
    Write,
    /// All of it, to read only: no copy of what is sent.
    Read,
    /// Nothing: packets are copied.
    Nothing,
}

/// A port text's options, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    /// The socket's path.
    pub path: PathBuf,
    pub role: Role,
    /// The interface's number on the socket.
    pub id: u32,
    /// The secret that a client shows, or a server asks for; empty if none.
    pub secret: String,
    /// Rings each way; a queue is one of each.
    pub rings: u16,
    /// Descriptors of a ring, a power of two.
    pub size: u32,
    /// Longest descriptor in bytes: what a peer's buffer holds, and ours.
    pub buffer_bytes: u32,
    pub sharing: Sharing,
    /// A server maps memory that its owner may cut short, a client gives away huge pages into which its
    /// peer may punch holes.
    pub trust: bool,
}

impl Config {
    /// Reads the options of `spec`.
    pub fn of(spec: &Spec) -> Result<Config> {
        Config::with(spec, Role::Client, 1)
    }

    /// Reads the options of a [`Reader`](super::Reader): a server that only reads.
    pub fn of_reader(spec: &Spec) -> Result<Config> {
        let config = Config::with(spec, Role::Server, RINGS_MAX)?;
        if config.role != Role::Server {
            return Err(spec
                .error("a reader is memif's server: its producer is the client")
                .fix("leave role out"));
        }
        Ok(Config { sharing: Sharing::Read, ..config })
    }

    /// A reader's, of which nothing but the place is said.
    pub fn reader_at(path: &Path) -> Config {
        Config {
            path: path.to_owned(),
            role: Role::Server,
            id: 0,
            secret: String::new(),
            rings: RINGS_MAX,
            size: SIZE,
            buffer_bytes: BUFFER_BYTES,
            sharing: Sharing::Read,
            trust: false,
        }
    }

    /// Reads the options of `spec`, of which `default_role` and `default_rings` may be left out.
    fn with(spec: &Spec, default_role: Role, default_rings: u16) -> Result<Config> {
        let role = spec.value("role", role)?.unwrap_or(default_role);
        let sharing = spec.value("zerocopy", sharing)?;
        let config = Config {
            path: PathBuf::from(&spec.arg),
            role,
            id: spec.value("id", str::parse)?.unwrap_or(0),
            secret: spec.value("secret", secret)?.unwrap_or_default(),
            rings: spec.value("rings", rings)?.unwrap_or(default_rings),
            size: spec.value("size", size)?.unwrap_or(SIZE),
            buffer_bytes: spec.value("buffer", buffer)?.unwrap_or(BUFFER_BYTES),
            sharing: match role {
                Role::Client => sharing.unwrap_or(Sharing::Write),
                Role::Server => Sharing::Nothing,
            },
            trust: spec.flag("trust")?,
        };
        spec.finish()?;
        if spec.arg.is_empty() {
            return Err(spec.error("which socket?").fix("memif:/run/NAME.sock, or memif:@NAME"));
        }
        if role == Role::Server && sharing.is_some() {
            return Err(spec
                .error("zerocopy is the client's to say, whose memory it is")
                .fix("say it at the client, or leave it out"));
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

fn secret(text: &str) -> std::result::Result<String, String> {
    match text.len() {
        // The last byte ends it.
        1..SECRET_BYTES => Ok(text.to_owned()),
        _ => Err(format!("1 to {} bytes", SECRET_BYTES - 1)),
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
            secret: String::new(),
            rings: 1,
            size: 1024,
            buffer_bytes: 2048,
            sharing: Sharing::Write,
            trust: false,
        };
        assert_eq!(config("memif:/run/x.sock").unwrap(), expected);
        let text = "memif:@x,role=server,id=7,secret=s,rings=2,size=256,buffer=4096,trust=yes";
        let all = config(text).unwrap();
        assert_eq!((all.role, all.id, all.secret.as_str()), (Role::Server, 7, "s"));
        assert_eq!((all.rings, all.size, all.buffer_bytes, all.trust), (2, 256, 4096, true));
        assert_eq!(all.sharing, Sharing::Nothing);
        assert_eq!(config("memif:@x,zerocopy=read").unwrap().sharing, Sharing::Read);
        assert_eq!(config("memif:@x,role=slave").unwrap().role, Role::Client);
    }

    #[test]
    fn a_reader_is_a_server_of_many_rings() {
        let reader = |text: &str| Config::of_reader(&Spec::parse(text, &["memif"])?);
        let said = reader("memif:/run/x.sock").unwrap();
        assert_eq!(said, Config::reader_at(Path::new("/run/x.sock")));
        assert_eq!((said.role, said.rings, said.sharing), (Role::Server, 64, Sharing::Read));
        let said = reader("memif:@x,role=server,rings=2,id=3,secret=s,trust=yes").unwrap();
        assert_eq!((said.rings, said.id, said.trust), (2, 3, true));
        for (text, why) in [
            ("memif:x,role=client", "memif's server"),
            ("memif:x,zerocopy=read", "client's to say"),
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
            ("memif:x,role=server,zerocopy=yes", "client's to say"),
            ("memif:x,id=-1", "id=-1"),
            ("memif:x,ring=2", "no option 'ring'"),
        ] {
            let e = config(text).unwrap_err();
            assert!(e.why.contains(why), "{text}: {e}");
        }
    }
}
