//! The tables of the experiment's post, shown beside the run for comparison.

use linerate_seeds::{Part, Post};
use linerate_show::escape::{escape, escape_lines};
use linerate_show::table::Table;

use crate::report::crossover;
use crate::report::posted::{self, Posted};
use crate::report::reads;
use crate::report::view::View;

/// Builds the tables of the run's post, computed again from its text; empty if the run reproduces
/// no post.
pub(super) fn section(view: &View<'_>) -> String {
    let run = view.run;
    let Some(post) = Post::named(&run.experiment.seed_post) else { return String::new() };
    let head = format!(
        "<p>Post {}: {}, {}, {}, {}.</p>\n<p><strong>Compare shapes and directions. Absolute values \
         are not compared: another machine, another kernel, another year.</strong></p>\n",
        escape(post.id),
        escape(post.title),
        escape(post.author),
        escape(post.list),
        escape(post.date),
    );
    let report = match post.report() {
        Ok(report) => report,
        Err(error) => return format!("{head}<pre>{}</pre>", escape_lines(&error.to_string())),
    };
    let parts: String = report.parts.iter().map(part).collect();
    let errata: String = report
        .errata
        .iter()
        .map(|e| {
            format!(
                "<li>{}<br><span class=\"unit\">{}</span></li>",
                escape(&e.says),
                escape(&e.gives)
            )
        })
        .collect();
    let ours: String = posted::of(view).iter().map(posted).collect();
    let model = crossover::lines(view).into_iter().chain(reads::lines(view));
    let model: String = model.map(|line| format!("<p>{}</p>\n", escape(&line))).collect();
    format!(
        "{head}{model}{ours}{parts}<details><summary>Errors and misleading statements in the post: {}</summary>\
         <ul class=\"notes\">{errata}</ul></details>\n",
        report.errata.len()
    )
}

fn posted(posted: &Posted) -> String {
    let beside: String = posted.beside.iter().map(Table::html).collect();
    format!(
        "<details open><summary>Ours in the post's layout: {}</summary><pre class=\"scroll\" \
         tabindex=\"0\">{}</pre>{beside}<p>{}</p></details>\n",
        escape(&posted.title),
        escape_lines(&posted.text),
        escape(posted.legend)
    )
}

fn part(part: &Part) -> String {
    match part {
        Part::Table(of) => of.html(),
        Part::Profile(printed) => format!(
            "<details><summary>{}</summary><pre class=\"scroll\" tabindex=\"0\">{}</pre></details>\n",
            escape(&printed.title),
            escape_lines(&printed.text)
        ),
        Part::Headline(_) | Part::Remarks { .. } => {
            format!(
                "<pre class=\"scroll\" tabindex=\"0\">{}</pre>\n",
                escape_lines(&part.to_string())
            )
        }
    }
}
