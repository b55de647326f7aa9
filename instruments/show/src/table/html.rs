//! A table as HTML, with its CSV.

use super::{Cell, Row, Table};
use crate::escape::{data_uri, escape};

impl Table {
    /// Formats the table as HTML, with its own figures as the CSV file.
    #[must_use]
    pub fn html(&self) -> String {
        self.html_with(&self.csv())
    }

    /// Formats the table as HTML under its title, in a box that scrolls on narrow pages, with `csv`
    /// as its CSV file.
    #[must_use]
    pub fn html_with(&self, csv: &str) -> String {
        let title = escape(&self.title);
        let head: String = (0..self.columns.len()).map(|i| html_head(self, i)).collect();
        let rows: String = self.rows.iter().map(|row| html_row(row, self.columns.len())).collect();
        let notes: String =
            self.notes.iter().map(|note| format!("<li>{}</li>", escape(note))).collect();
        let notes =
            if notes.is_empty() { notes } else { format!("<ul class=\"notes\">{notes}</ul>") };
        format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\"><table>\
             <caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>\
             {notes}{}",
            csv_link(self.name, &self.title, csv)
        )
    }
}

/// Formats a link that contains the figures as a file.
#[must_use]
pub fn csv_link(name: &str, title: &str, csv: &str) -> String {
    let (name, title, csv) = (escape(name), escape(title), data_uri(csv));
    format!(
        "<p class=\"csv\"><a download=\"{name}.csv\" href=\"{csv}\">CSV \
         <span class=\"hidden\">of {title}</span></a></p>\n"
    )
}

fn html_head(table: &Table, place: usize) -> String {
    let Some(column) = table.columns.get(place) else { return String::new() };
    let is_text = |cell: &Cell| matches!(cell, Cell::Text(word) if class(word) != "n");
    let mut filled = table.figures().filter_map(|cells| cells.get(place));
    let class = if filled.any(is_text) { "t" } else { "n" };
    let unit = match column.unit {
        "" => String::new(),
        unit => format!(" <span class=\"unit\">{}</span>", escape(unit)),
    };
    let head = escape(&column.head.replace('\n', " "));
    format!("<th scope=\"col\" class=\"{class}\">{head}{unit}</th>")
}

fn html_row(row: &Row, columns: usize) -> String {
    match row {
        Row::Cells(cells) => {
            let cells: String =
                cells.iter().enumerate().map(|(i, cell)| html_cell(i, cell)).collect();
            format!("<tr>{cells}</tr>")
        }
        Row::Heading(text) => {
            format!(
                "<tr><th class=\"group\" scope=\"rowgroup\" colspan=\"{columns}\">{}</th></tr>",
                escape(text)
            )
        }
        Row::Rule => {
            format!("<tr class=\"rule\" aria-hidden=\"true\"><td colspan=\"{columns}\"></td></tr>")
        }
    }
}

fn html_cell(place: usize, cell: &Cell) -> String {
    let text = escape(&cell.to_string());
    match (place, cell) {
        (0, _) => format!("<th scope=\"row\">{text}</th>"),
        (_, Cell::Text(word)) => format!("<td class=\"{}\">{text}</td>", class(word)),
        (_, Cell::Absent(why)) => format!("<td class=\"n\" title=\"{}\">{text}</td>", escape(why)),
        _ => format!("<td class=\"n\">{text}</td>"),
    }
}

/// Returns the CSS class with which a page marks a word.
fn class(word: &str) -> &'static str {
    match word {
        "better" | "met" | "OK" => "better",
        "worse" | "UNBALANCED" => "worse",
        "NOT met" => "notmet",
        word if word.starts_with('[') || is_number(word) => "n",
        _ => "t",
    }
}

/// Returns true for a number with an exponent, or a bound of one.
fn is_number(word: &str) -> bool {
    word.trim_start_matches("< ").parse::<f64>().is_ok()
}
