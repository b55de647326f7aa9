//! Enumerations whose variants have names.

/// Declares an enum with `ALL`, its variants in the order of printing; `as_str`, the name of each;
/// and `Display` by that name.
macro_rules! named {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $text:expr,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// All variants, in the order of printing.
            pub const ALL: &[$name] = &[$($name::$variant,)+];

            /// Returns the name that is printed.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
