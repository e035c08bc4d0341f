//! The table of the models.

use super::{Escaped, count};
use crate::explore::Explored;
use crate::model::Model;
use std::fmt::{self, Write};

pub(super) fn write(page: &mut String, models: &[Explored]) -> fmt::Result {
    page.push_str(
        "<section aria-labelledby=\"models\">\n<h2 id=\"models\">Models</h2>\n\
         <table class=\"models\" role=\"table\">\n<thead role=\"rowgroup\"><tr role=\"row\">",
    );
    for (name, class) in COLUMNS {
        write!(
            page,
            "<th scope=\"col\" role=\"columnheader\"{class}>{name}</th>"
        )?;
    }
    page.push_str("</tr></thead>\n<tbody role=\"rowgroup\">\n");
    for model in models {
        row(page, model)?;
    }
    page.push_str("</tbody>\n</table>\n</section>\n");
    Ok(())
}

const NUMBER: &str = " class=\"number\"";

const COLUMNS: [(&str, &str); 7] = [
    ("Model", ""),
    ("Verdict", ""),
    ("Visited", ""),
    ("States", NUMBER),
    ("Judged", NUMBER),
    ("Failed", NUMBER),
    ("Seconds", NUMBER),
];

fn row(page: &mut String, model: &Explored) -> fmt::Result {
    let about = model.model.parse().ok().map(Model::about);
    let about = match about {
        Some(about) => format!("<span class=\"about\">{}</span>", Escaped(about)),
        None => String::new(),
    };
    let (class, verdict) = verdict(model);
    let reason = match &model.refused {
        Some(why) => format!("<span class=\"about\">{}</span>", Escaped(why)),
        None => String::new(),
    };
    write!(
        page,
        "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\"><code>{}</code>{about}</th>\
         <td role=\"cell\" data-label=\"Verdict\"><span class=\"verdict {class}\">{verdict}</span>\
         {reason}</td>\
         <td role=\"cell\" data-label=\"Visited\">{}</td>",
        Escaped(&model.model),
        visited(model)
    )?;
    let seconds = format!("{:.1}", model.seconds);
    let numbers = [
        ("States", count(model.states)),
        ("Judged", count(model.judged)),
        ("Failed", count(model.failed)),
        ("Seconds", seconds),
    ];
    for (label, number) in numbers {
        write!(
            page,
            "<td role=\"cell\"{NUMBER} data-label=\"{label}\">{number}</td>"
        )?;
    }
    page.push_str("</tr>\n");
    Ok(())
}

/// Class and words.
fn verdict(model: &Explored) -> (&'static str, &'static str) {
    match model {
        Explored {
            refused: Some(_), ..
        } => ("unknown", "not explored"),
        Explored { failed: 1.., .. } => ("failed", "failed"),
        Explored { complete: true, .. } => ("safe", "safe"),
        Explored { .. } => ("unknown", "not all states visited"),
    }
}

fn visited(model: &Explored) -> &'static str {
    match (&model.refused, model.complete) {
        (Some(_), _) => "none",
        (None, true) => "all states",
        (None, false) => "a sample",
    }
}
