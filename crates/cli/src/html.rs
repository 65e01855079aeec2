//! One look for all pages that are written to files: a page with nothing from elsewhere.

use std::fmt::Write as _;

/// Legible on a phone and in print, in light and dark.
const STYLE: &str = include_str!("html/style.css");

/// A page: its title, and what stands in its body, which is markup.
pub(crate) fn page(title: &str, body: &str) -> String {
    page_styled(title, "", body)
}

/// The same with a style of its own after that of all pages.
pub(crate) fn page_styled(title: &str, style: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// Text as markup.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

/// A table that scrolls by itself where the screen is narrow. Cells are markup; columns after the
/// first `text_columns` are numbers.
pub(crate) fn table<R: AsRef<[String]>>(head: &[&str], text_columns: usize, rows: &[R]) -> String {
    let mut out = String::from("<div class=\"wide\"><table>\n<thead><tr>");
    let class = |column: usize| if column < text_columns { "" } else { " class=\"number\"" };
    for (column, name) in head.iter().enumerate() {
        write!(out, "<th{}>{name}</th>", class(column)).expect("strings take all text");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (column, cell) in row.as_ref().iter().enumerate() {
            write!(out, "<td{}>{cell}</td>", class(column)).expect("strings take all text");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let page = page("a <b> & \"c\"", "");
        assert!(page.contains("<h1>a &lt;b&gt; &amp; &quot;c&quot;</h1>"));
    }

    #[test]
    fn numbers_are_set_as_numbers() {
        let table = table(&["name", "rate"], 1, &[["x".to_owned(), "1.5".to_owned()]]);
        assert!(table.contains("<td>x</td><td class=\"number\">1.5</td>"));
    }
}
