//! Tests of the suite: our own ports, and drivers that are broken on purpose.

mod broken;
mod ports;

#[test]
fn every_case_is_one_of_the_macros_tests() {
    let cases = include_str!("../cases/mod.rs").split("pub use ").skip(1);
    let names = cases.flat_map(|text| {
        let list = text.split([';', '{', '}']).nth(1).unwrap_or_default();
        list.split(',').map(str::trim).filter(|name| !name.is_empty())
    });
    let tests: Vec<_> = include_str!("../mod.rs").lines().map(str::trim).collect();
    let mut n = 0;
    for name in names {
        assert!(tests.contains(&name), "{name} is no test of conformance!");
        n += 1;
    }
    assert_eq!(n, 18);
}
