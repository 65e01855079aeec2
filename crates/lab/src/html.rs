//! One look for all pages that are written to files: a page with nothing from elsewhere.
//!
//! Markup is made by `maud`, which escapes every text that is put into it.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Legible on a phone and in print, in light and dark.
const STYLE: &str = include_str!("html/style.css");

/// A page: its title, a style of its own after that of all pages, and what stands in its body.
pub(crate) fn page(title: &str, style: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(style)) }
            }
            body {
                main {
                    h1 { (title) }
                    (body)
                }
            }
        }
    };
    page.into_string()
}

/// A table that scrolls by itself where the screen is narrow. Columns after the first `text_columns`
/// are numbers.
pub(crate) fn table<R: AsRef<[String]>>(head: &[&str], text_columns: usize, rows: &[R]) -> Markup {
    let class = |column: usize| (column >= text_columns).then_some("number");
    html! {
        div.wide {
            table {
                thead {
                    tr { @for (column, name) in head.iter().enumerate() { th class=[class(column)] { (name) } } }
                }
                tbody {
                    @for row in rows {
                        tr {
                            @for (column, cell) in row.as_ref().iter().enumerate() {
                                td class=[class(column)] { (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let page = page("a <b> & \"c\"", "", &html! {});
        assert!(page.contains("<h1>a &lt;b&gt; &amp; &quot;c&quot;</h1>"));
    }

    #[test]
    fn numbers_are_set_as_numbers() {
        let table = table(&["name", "rate"], 1, &[["x".to_owned(), "1.5".to_owned()]]);
        assert!(table.into_string().contains("<td>x</td><td class=\"number\">1.5</td>"));
    }
}
