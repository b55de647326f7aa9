//! A run as one HTML file: no network, no script, no embedded font; figures are inline SVG, each
//! with its table and CSV below.

mod flame;
mod forest;
mod matrices;
mod noise;
mod post;
mod profile;
mod skbinit;

use linerate_show::escape::{escape, escape_json, escape_lines};
use linerate_show::svg::{Axis, Svg, head_height};

use super::remarks::reasons;
use super::remarks::{self, Remark};
use super::sentence::{Expectation, expectations};
use super::tables;
use super::view::View;
use super::words::paragraphs;
use crate::record::Run;

/// The style for light and dark pages, wide and narrow ones, and paper.
const STYLE: &str = include_str!("page.css");

/// A content security policy: if a document's text became markup, the browser would still not run
/// it or fetch anything for it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Most notes that are shown unfolded.
const NOTES_OPEN_MAX: usize = 5;

/// A part of the page: its anchor, its heading, its contents.
type Section = (&'static str, &'static str, String);

/// Returns the page.
pub(super) fn html(runs: &[Run]) -> String {
    let Some(run) = runs.first() else {
        return page("No run", "<p>There is no run to report.</p>");
    };
    let view = View::new(run);
    let sections = sections(&view, runs);
    let links: String = sections
        .iter()
        .map(|(id, head, _)| format!("<li><a href=\"#{id}\">{head}</a></li>"))
        .collect();
    let parts: String = sections
        .iter()
        .map(|(id, head, body)| {
            format!("<section id=\"{id}\">\n<h2>{head}</h2>\n{body}</section>\n")
        })
        .collect();
    let body = format!(
        "{}<nav aria-label=\"Parts\"><ul>{links}</ul></nav>\n<main>\n{parts}</main>\n{}",
        header(&view),
        documents(runs)
    );
    page(&format!("{}: {}", run.experiment.id, run.run.id), &body)
}

fn sections(view: &View<'_>, runs: &[Run]) -> Vec<Section> {
    let all = [
        ("warnings", "To be minded", warnings(view)),
        ("few", "Inconclusive results", few(view)),
        ("expected", "What was expected", expected(view)),
        ("effects", "What changed", effects(view)),
        ("shape", "In the post's shape", skbinit::calls(view)),
        ("profiles", "Where the time went", profile::section(view)),
        ("noise", "Differences measured between identical code", noise(view)),
        ("pairs", "Every pair", pairs(view)),
        ("ledger", "Where every packet went", ledger(view)),
        ("totals", "Of the whole sides", totals(view)),
        ("trend", "Over several runs", forest::section(runs)),
        ("post", "The post, beside", published(view)),
        ("conditions", "How it was measured", conditions(view)),
        ("notes", "Notes", notes(view)),
    ];
    all.into_iter().filter(|(_, _, body)| !body.is_empty()).collect()
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(title)
    )
}

fn header(view: &View<'_>) -> String {
    let run = view.run;
    let marks: String = view
        .marks()
        .iter()
        .map(|mark| format!("<p class=\"mark\">{}</p>\n", escape(mark)))
        .collect();
    let title = view.experiment.as_ref().map_or(run.experiment.id.as_str(), |e| e.title.as_str());
    let question = view.experiment.as_ref().map_or(String::new(), |experiment| {
        let paragraphs = paragraphs(&experiment.question);
        let each = paragraphs.iter().map(|p| format!("<p class=\"question\">{}</p>\n", escape(p)));
        each.collect()
    });
    let (rates, costs, all) = view.pairs();
    let floor = view.floor_pct().map_or("n/a".into(), |width| format!("±{width:.2} %"));
    let badge = |value: &str, what: &str| {
        format!("<div class=\"badge\"><b>{}</b><span>{what}</span></div>", escape(value))
    };
    format!(
        "<header>\n{marks}<p class=\"kicker\">{} · {}</p>\n<h1>{}</h1>\n\
         <p class=\"verdict {}\">{}</p>\n{question}<div class=\"badges\">{}{}{}{}</div>\n\
         <p class=\"rerun\">Run it again: <code>{}</code></p>\n</header>\n",
        escape(&run.experiment.id),
        escape(run.run.started.get(..10).unwrap_or_default()),
        escape(title),
        verdict_class(&run.verdict),
        escape(&view.verdict()),
        badge(&floor, "A/A floor of the headline: the difference measured between identical code"),
        badge(&format!("{costs} / {all}"), "pairs admitted for costs"),
        badge(&format!("{rates} / {all}"), "pairs admitted for rates"),
        badge(&run.cells.len().to_string(), "cells"),
        escape(&view.command()),
    )
}

fn verdict_class(verdict: &str) -> &'static str {
    match verdict {
        "better" => "better",
        "worse" => "worse",
        "same" => "same",
        _ => "unclear",
    }
}

fn warnings(view: &View<'_>) -> String {
    let all: String = remarks::warnings(view).iter().map(remark).collect();
    if all.is_empty() { all } else { format!("<ul class=\"warnings\">{all}</ul>\n") }
}

fn remark(Remark { code, text, fix }: &Remark) -> String {
    let fix = fix.as_ref().map_or(String::new(), |fix| {
        format!("<br><span class=\"unit\">fix</span> <code>{}</code>", escape(fix))
    });
    format!("<li><b>{}</b> {}{fix}</li>", escape(code), escape(text))
}

fn few(view: &View<'_>) -> String {
    let line = |(cells, why): &(String, String)| match cells.as_str() {
        "" => format!("<li>{}</li>", escape(why)),
        cells => format!("<li><b>{}</b>: {}</li>", escape(cells), escape(why)),
    };
    let lines: String = reasons(view).iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("<ul class=\"list\">{lines}</ul>\n") }
}

fn expected(view: &View<'_>) -> String {
    let line = |one: &Expectation| {
        let class = match one.outcome.as_str() {
            _ if one.met => "key better",
            outcome if outcome.contains("NOT met") => "key notmet",
            _ => "key",
        };
        format!(
            "<li>{}: <span class=\"{class}\">{}</span><br><span class=\"unit\">{}</span></li>",
            escape(&one.what),
            escape(&one.outcome),
            escape(&one.source)
        )
    };
    let lines: String = expectations(view).iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("<ul class=\"list\">{lines}</ul>\n") }
}

/// Formats the notes other than warnings; folded if they are many.
fn notes(view: &View<'_>) -> String {
    let notes = remarks::notes(view);
    let lines: String = notes.iter().map(remark).collect();
    match notes.len() {
        0 => String::new(),
        1..=NOTES_OPEN_MAX => format!("<ul class=\"notes\">{lines}</ul>\n"),
        n => format!(
            "<details><summary>{n} notes</summary><ul class=\"notes\">{lines}</ul></details>\n"
        ),
    }
}

fn effects(view: &View<'_>) -> String {
    let legend = "<p class=\"legend\"><span class=\"key better\">● better</span> \
                  <span class=\"key worse\">◆ worse</span> <span class=\"key same\">○ same</span> \
                  <span class=\"key unclear\">× unclear</span> \
                  <span class=\"key\"><i class=\"floor\"></i>A/A floor: the difference measured between identical code</span> \
                  <span class=\"key\"><i class=\"expected\"></i>expected</span></p>\n";
    let metric = |(i, metric): (usize, &super::view::Shown)| {
        let table = tables::of_metric(view, metric).html();
        let head = if i == 0 && view.headline().is_some_and(|one| one.name == metric.name) {
            " <span class=\"unit\">headline</span>"
        } else {
            ""
        };
        format!(
            "<article>\n<h3>{}{head}</h3>\n<p class=\"about\">{}</p>\n{}{table}</article>\n",
            escape(&metric.label),
            escape(&metric.about),
            forest::metric(view, metric)
        )
    };
    let (drawn, nothing): (Vec<_>, Vec<_>) =
        view.measured().enumerate().partition(|(_, metric)| !view.is_nothing(metric));
    let all: String = drawn.into_iter().take(tables::ROWS_MAX).map(metric).collect();
    let nothing: Vec<&str> = nothing.iter().map(|(_, metric)| metric.label.as_str()).collect();
    let nothing = match escape(&nothing.join(", ")) {
        names if names.is_empty() => names,
        names => format!("<p class=\"about\">0 on both sides of every cell: {names}.</p>\n"),
    };
    let uncounted = tables::uncounted(view).into_iter().map(|(why, names)| {
        let names = escape(&names.join(", "));
        format!("<p class=\"about\">Not counted here: {names}: {why}.</p>\n")
    });
    let uncounted: String = uncounted.collect();
    match all.is_empty() {
        true => nothing + &uncounted,
        false => format!("{legend}<div class=\"metrics\">{all}</div>\n{nothing}{uncounted}"),
    }
}

fn noise(view: &View<'_>) -> String {
    view.headline().map_or(String::new(), |metric| noise::strip(view, metric))
}

fn pairs(view: &View<'_>) -> String {
    let legend = "<p class=\"legend\"><span class=\"key\">● admitted</span> \
                  <span class=\"key\">◎ admitted, but in no figure: its CPUs were at another distance</span> \
                  <span class=\"key\">○ rejected, by its environment and never by its result</span> \
                  <span class=\"key\"><i class=\"running\"></i>running median of 7</span></p>\n";
    let charts = view.headline().map_or(String::new(), |metric| noise::run_charts(view, metric));
    if charts.is_empty() { charts } else { format!("{legend}{charts}") }
}

fn ledger(view: &View<'_>) -> String {
    if !tables::has_packets(view) {
        return String::new();
    }
    let drops = tables::drops(view).map_or(String::new(), |drops| drops.html());
    format!("{}{drops}", tables::ledgers(view).html())
}

fn totals(view: &View<'_>) -> String {
    let totals = tables::totals(view).map_or(String::new(), |totals| totals.html());
    format!("{}{totals}", matrices::section(view))
}

fn published(view: &View<'_>) -> String {
    let points = tables::fixed_points(view).map_or(String::new(), |points| points.html());
    format!("{points}{}", post::section(view))
}

fn conditions(view: &View<'_>) -> String {
    let facts: String = view
        .facts()
        .into_iter()
        .map(|(about, fact)| format!("<dt>{about}</dt><dd>{}</dd>", escape(&fact)))
        .collect();
    let file = view.run.run.config_toml.as_ref().map_or(String::new(), |toml| {
        format!(
            "<details><summary>The experiment's file, as it was run</summary>\
             <pre class=\"scroll\" tabindex=\"0\">{}</pre></details>\n",
            escape_lines(toml)
        )
    });
    format!("<dl>{facts}</dl>\n{file}")
}

/// Embeds the whole document of the first run, so that all results can be computed again, and the
/// documents of other runs without pairs.
fn documents(runs: &[Run]) -> String {
    let mut all = String::new();
    for (i, run) in runs.iter().enumerate() {
        let mut run = run.clone();
        if i > 0 {
            run.cells.iter_mut().for_each(|cell| cell.pairs.clear());
        }
        // Serialization cannot fail, because every key is a string.
        let json = serde_json::to_string(&run).unwrap_or_default();
        all += &format!(
            "<script type=\"application/json\" id=\"run-{}\">{}</script>\n",
            i + 1,
            escape_json(&json)
        );
    }
    all
}

/// Returns a sentence on `n` things that are not drawn, with their names for one and for several;
/// empty if all are drawn.
fn more(n: usize, [one, several]: [&str; 2]) -> String {
    match n {
        0 => String::new(),
        1 => format!("<p class=\"unit\">1 more {one} is in the run's document.</p>\n"),
        n => format!("<p class=\"unit\">{n} more {several} are in the run's document.</p>\n"),
    }
}

/// Formats a chart with its caption.
fn figure_of(chart: &str, caption: &str) -> String {
    format!("<figure>\n{chart}\n<figcaption>{}</figcaption>\n</figure>\n", escape(caption))
}

/// Draws a chart of rows: each has a line with its name and description, and `high` pixels below
/// it, which `draw` fills.
fn rows<T>(
    (title, desc): (&str, &str),
    axis: Option<&Axis>,
    high: f64,
    rows: &[T],
    head: impl Fn(&T) -> (String, String),
    draw: impl Fn(&mut Svg, &T, f64),
) -> String {
    let heads: Vec<(String, String)> = rows.iter().map(head).collect();
    let heights = || heads.iter().map(|(name, said)| head_height(name, said));
    let first = axis.map_or(0.0, |_| 6.0);
    let bottom = first + heights().sum::<f64>() + high * rows.len() as f64;
    let mut svg = Svg::new(title, desc);
    if let Some(axis) = axis {
        svg.grid_x(axis, (first, bottom));
    }
    let mut top = first;
    for ((row, (name, said)), head) in rows.iter().zip(&heads).zip(heights()) {
        svg.head(top, name, said);
        draw(&mut svg, row, top + head);
        top += head + high;
    }
    svg.finish(bottom + axis.map_or(0.0, |_| 22.0))
}
