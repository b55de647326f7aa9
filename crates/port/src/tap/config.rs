//! Options of a tap port text.

use linerate_skb::Result;
use linerate_sys::tun::TAP_QUEUES_MAX;

use crate::spec::Spec;

/// The checked options of a port text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    /// The interface's name; `%d` in it is replaced by the first free number.
    pub name: String,
    /// Number of queues. With one, the interface has a single queue; with more, it is a multi-queue
    /// interface.
    pub queues: usize,
    /// True if the port sets the interface up.
    pub up: bool,
    /// True to exchange offload headers with the kernel.
    pub vnet: bool,
}

impl Config {
    /// Parses the options of `spec`.
    pub fn of(spec: &Spec) -> Result<Config> {
        let mut spec = spec.clone();
        spec.options.set_default("vnet", Some("on"));
        let config = Config {
            name: spec.arg.clone(),
            queues: spec.queues(TAP_QUEUES_MAX)?,
            up: spec.flag("up")?,
            vnet: spec.flag("vnet")?,
        };
        spec.finish()?;
        if config.name.is_empty() {
            return Err(spec
                .error("which interface?")
                .fix("tap:NAME; tap:tap%d takes a free name"));
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config> {
        Config::of(&Spec::parse(text, &["tap"])?)
    }

    #[test]
    fn an_interface_is_left_alone_unless_told_otherwise() {
        let expected = Config { name: "t0".into(), queues: 1, up: false, vnet: true };
        assert_eq!(config("tap:t0").unwrap(), expected);
        let all = config("tap:t0,up,queues=4,vnet=off").unwrap();
        assert_eq!((all.up, all.queues, all.vnet), (true, 4, false));
    }

    #[test]
    fn wrong_option_is_named() {
        for (text, why) in [
            ("tap:", "which interface"),
            ("tap:t0,up=maybe", "on or off"),
            ("tap:t0,vnet=maybe", "on or off"),
            ("tap:t0,queues=0", "1 to 256"),
            ("tap:t0,queues=257", "1 to 256"),
            ("tap:t0,mtu=9000", "no option 'mtu'"),
        ] {
            let e = config(text).unwrap_err();
            assert!(e.why.contains(why), "{text}: {e}");
        }
    }
}
