//! What stands in the port text.

use linerate_skb::Result;

use crate::spec::Spec;

/// A port text's options, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    /// The interface; `%d` in it stands for the first free number.
    pub name: String,
    /// Bring it up.
    pub up: bool,
}

impl Config {
    /// Reads the options of `spec`.
    pub fn of(spec: &Spec) -> Result<Config> {
        let config = Config { name: spec.arg.clone(), up: spec.flag("up")? };
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
        assert_eq!(config("tap:t0").unwrap(), Config { name: "t0".into(), up: false });
        assert!(config("tap:t0,up").unwrap().up);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("tap:", "which interface"),
            ("tap:t0,up=maybe", "on or off"),
            ("tap:t0,mtu=9000", "no option 'mtu'"),
        ] {
            let e = config(text).unwrap_err();
            assert!(e.why.contains(why), "{text}: {e}");
        }
    }
}
