//! Facts in post 002 other than its table: the environment, and the proposals.

use linerate_prof::Result;
use linerate_show::table::{Cell, Column, Table};

use super::super::{Report, Text};

pub(super) fn taken(report: &mut Report, text: &Text<'_>) -> Result<()> {
    let subject = text.between("This set of patches", ".")?;
    report.taken("subject", subject.is, Some(subject.line));
    let sides = text.between("Testing environment (", ")")?;
    report.taken("settings", format!("{}; all of them below", sides.is), Some(sides.line));
    report.taken("tool, runs", "not said; nor machines, kernel or how often it was run", None);
    Ok(())
}

/// Returns the commands of the environment, as settings.
pub(super) fn settings(text: &Text<'_>) -> Result<Table> {
    let head = text.line_with(1, "Testing environment")?.line;
    let columns = [
        Column::new("setting", "setting", ""),
        Column::new("value", "value", ""),
        Column::new("line", "line", ""),
    ];
    let mut table =
        Table::new("environment", "Environment, as the post's commands set it", &columns);
    let mut row = |setting: String, value: &str, line: usize| {
        table.row(vec![Cell::Text(setting), Cell::text(value), Cell::Count(line as u64)]);
    };
    for (line, command) in text.lines_from(head + 1).take_while(|(_, row)| !row.trim().is_empty()) {
        let command = command.trim();
        if let Some((value, path)) = command.strip_prefix("echo ").and_then(|c| c.split_once(" > "))
        {
            let name = path.trim_start_matches("/proc/sys/").replace('/', ".");
            row(name, value.trim_matches('"'), line);
        } else if let Some(arguments) = command.strip_prefix("modprobe ") {
            let (module, options) = arguments.split_once(' ').unwrap_or((arguments, ""));
            for (name, value) in options.split_whitespace().filter_map(|o| o.split_once('=')) {
                row(format!("{module} {name}"), value, line);
            }
        }
    }
    Ok(table)
}

/// Lists the proposals: those adopted, and those tried, measured and dropped.
pub(super) fn decisions(report: &mut Report, text: &Text<'_>) -> Result<()> {
    let adopted = items(text, "List of changes from original submission:")?;
    report.remarks("Proposed and taken up", adopted);
    let dropped = items(text, "List of changes implemented, tested and dropped:")?;
    report.remarks("Implemented, tested and dropped, with the reason given", dropped);
    Ok(())
}

/// Returns the numbered list under a title.
fn items(text: &Text<'_>, title: &str) -> Result<Vec<String>> {
    let head = text.line_with(1, title)?.line;
    let mut items: Vec<String> = Vec::new();
    // A ruling line is between the title and the first item.
    let rows = text.lines_from(head + 2).map(|(_, row)| row);
    for row in rows.take_while(|row| !row.trim().is_empty()) {
        match items.last_mut().filter(|_| row.starts_with(char::is_whitespace)) {
            Some(item) => item.extend([" ", row.trim()]),
            None => items.push(row.trim().to_owned()),
        }
    }
    if items.is_empty() {
        return Err(text.wrong(head, "no list follows"));
    }
    Ok(items)
}
