//! A page about a run of steps, such as a training: curves, what it came to, and what it was made from.

use maud::html;

use crate::bench::plot::{self, Line};
use crate::html;

/// A picture with some curves over the steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Curves {
    /// What it shows.
    pub caption: String,
    /// The curves: what each is, and its points from left to right.
    pub curves: Vec<(String, Vec<(f64, f64)>)>,
}

/// What the page says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CurvesPage {
    /// Its title.
    pub title: String,
    /// What the run came to, a line each.
    pub verdict: Vec<String>,
    /// The pictures.
    pub pictures: Vec<Curves>,
    /// What the words mean.
    pub words: Vec<(&'static str, &'static str)>,
    /// What was measured: the names of its columns, and the rows.
    pub measured: (Vec<&'static str>, Vec<Vec<String>>),
    /// What it was made from, and how.
    pub facts: Vec<(&'static str, String)>,
}

impl CurvesPage {
    /// The page: one file with nothing from elsewhere.
    ///
    /// ```
    /// use forerun_lab::CurvesPage;
    /// let page = CurvesPage { title: "A <run>".to_owned(), ..CurvesPage::default() };
    /// assert!(page.html().contains("<h1>A &lt;run&gt;</h1>"));
    /// ```
    pub fn html(&self) -> String {
        let picture = |picture: &Curves| {
            let line = |(label, points): &(String, Vec<(f64, f64)>)| Line {
                label: label.clone(),
                points: points.clone(),
            };
            plot::steps(&picture.caption, &picture.curves.iter().map(line).collect::<Vec<_>>())
        };
        let facts: Vec<[String; 2]> =
            self.facts.iter().map(|(name, fact)| [(*name).to_owned(), fact.clone()]).collect();
        let body = html! {
            p.verdict {
                @for (index, line) in self.verdict.iter().enumerate() {
                    @if index > 0 { br; }
                    (line)
                }
            }
            div.plots { @for it in &self.pictures { (picture(it)) } }
            dl {
                @for (word, meaning) in &self.words {
                    dt { (word) }
                    dd { (meaning) }
                }
            }
            h2 { "Measured" }
            (html::table(&self.measured.0, 0, &self.measured.1))
            h2 { "Made from" }
            (html::table(&["", ""], 2, &facts))
        };
        html::page(&self.title, plot::STYLE, &body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_was_given_is_on_the_page_and_nothing_comes_from_elsewhere() {
        let curve = ("held out".to_owned(), vec![(0.0, 0.1), (10.0, 0.4)]);
        let page = CurvesPage {
            title: "Draft model".to_owned(),
            verdict: vec!["overlap 0.4".to_owned(), "0.1 at the start".to_owned()],
            pictures: vec![Curves { caption: "Overlap".to_owned(), curves: vec![curve] }],
            words: vec![("overlap", "what is accepted")],
            measured: (vec!["step"], vec![vec!["10".to_owned()]]),
            facts: vec![("target", "a & b".to_owned())],
        };
        let page = page.html();
        for said in ["overlap 0.4", "0.1 at the start", "<svg", "held out", "what is accepted"] {
            assert!(page.contains(said), "{said}: {page}");
        }
        assert!(page.contains("<td class=\"number\">10</td>") && page.contains("a &amp; b"));
        assert!(!page.contains("http") && !page.contains("src="), "{page}");
    }
}
