//! Figures of whole sides as the document has them: an object of figures for each side.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

type Heads = BTreeMap<String, BTreeMap<String, f64>>;

/// Writes `cell/side/name` as `{"cell/side": {"name": …}}`.
pub(super) fn serialize<S: Serializer>(
    totals: &BTreeMap<String, f64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut heads = Heads::new();
    for (path, total) in totals {
        let (side, name) = path.rsplit_once('/').unwrap_or(("", path));
        heads.entry(side.into()).or_default().insert(name.into(), *total);
    }
    heads.serialize(serializer)
}

/// Reads what [`serialize`] wrote.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    let heads = Heads::deserialize(deserializer)?;
    let sides = heads.into_iter().flat_map(|(side, figures)| {
        figures.into_iter().map(move |(name, total)| {
            (if side.is_empty() { name } else { format!("{side}/{name}") }, total)
        })
    });
    Ok(sides.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Document(#[serde(with = "super")] BTreeMap<String, f64>);

    #[test]
    fn figures_stand_under_their_side_and_come_back() {
        let totals =
            [("size=64/a/memory_bytes", 1.0), ("size=64/a/outstanding", 2.0), ("alone", 3.0)];
        let document = Document(totals.map(|(path, total)| (path.to_owned(), total)).into());
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["size=64/a"]["outstanding"], 2.0);
        assert_eq!(serde_json::from_value::<Document>(json).unwrap(), document);
    }
}
