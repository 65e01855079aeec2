//! Pictures for the page: inline SVG that takes its colours from the page's style.
//!
//! Every picture is a column as wide as a phone, so that its text is never smaller than print;
//! lines differ in mark and dash too, so that nothing depends on colour.

use maud::{Markup, PreEscaped, html};

use super::interval::Interval;
use crate::plot::{Scale, px};

/// Colours, marks and sizes.
pub(crate) const STYLE: &str = include_str!("plot.css");

/// As wide as a phone shows without scaling.
const WIDTH: f64 = 360.0;
/// A line of text.
const LINE: f64 = 20.0;
/// A label and the bar under it.
const ROW: f64 = 40.0;
/// Numbers of an axis under a chart.
const FOOT: f64 = 26.0;
/// Height of a chart with two axes, and room for the numbers of the upright one.
const CHART: f64 = 190.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
/// Lines that can be told apart.
const STYLES: usize = 6;
/// About what a letter takes.
const LETTER: f64 = 7.4;

/// What a stacked bar is made of, in order.
pub(super) const PARTS: [&str; 5] =
    ["target passes", "draft passes", "other drafting", "judging", "rest"];

/// Rows under a heading.
pub(super) struct Group<T> {
    /// The heading.
    pub(super) name: String,
    /// Labels and what belongs to them.
    pub(super) rows: Vec<(String, T)>,
}

/// A line of a chart: its label and points.
pub(crate) struct Line {
    /// For the legend.
    pub(crate) label: String,
    /// From left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A picture that grows downwards.
struct Picture {
    body: String,
    height: f64,
}

impl Picture {
    fn new() -> Self {
        Self { body: String::new(), height: 0.0 }
    }

    fn add(&mut self, markup: &Markup) {
        self.body.push_str(&markup.0);
    }

    fn text(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        self.add(&html! { text x=(px(x)) y=(px(y)) class=(class) { (text) } });
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(&html! { line x1=(px(x1)) y1=(px(y1)) x2=(px(x2)) y2=(px(y2)) class=(class) {} });
    }

    fn bar(&mut self, from: f64, to: f64, y: f64, class: &str) {
        let width = px((to - from).max(0.0));
        self.add(&html! { rect x=(px(from)) y=(px(y)) width=(width) height="12" class=(class) {} });
    }

    /// One of several marks that differ in shape.
    fn mark(&mut self, (x, y): (f64, f64), index: usize) {
        let shape = match index % STYLES {
            0 => "m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0",
            1 => "m-4,-4h8v8h-8z",
            2 => "m0,-5l5,9h-10z",
            3 => "m0,-5l5,5l-5,5l-5,-5z",
            4 => "m0,5l5,-9h-10z",
            _ => "m-5,-1.5h3.5v-3.5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5z",
        };
        let style = index % STYLES;
        let path = format!("M{x:.1},{y:.1}{shape}");
        self.add(&html! { path d=(path) class={ "mark c" (style) } {} });
    }

    /// The picture with what it shows in words.
    fn figure(self, caption: &str) -> Markup {
        let view = format!("0 0 {WIDTH} {:.0}", self.height);
        html! {
            figure {
                figcaption { (caption) }
                svg.plot viewBox=(view) role="img" aria-label=(caption) { (PreEscaped(self.body)) }
            }
        }
    }
}

/// A text that fits this width, its middle left out where need be: names differ at their ends.
fn fitted(text: &str, width: f64) -> String {
    let most = (0..).take_while(|count| f64::from(*count) * LETTER < width).count();
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= most {
        return text.to_owned();
    }
    let half = most.saturating_sub(1) / 2;
    let (head, tail) = (&letters[..half], &letters[letters.len() - half..]);
    head.iter().chain(['…'].iter()).chain(tail).collect()
}

/// A number with as many digits as its size needs.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 9.95 || size == 0.0 => 0,
        size if size >= 0.995 => 1,
        size if size >= 0.0995 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// Speed-ups as points with their intervals; an upright line stands where plain decoding is.
pub(super) fn speedups(caption: &str, groups: &[Group<Interval>]) -> Markup {
    let all = || groups.iter().flat_map(|group| group.rows.iter().map(|(_, it)| *it));
    let most = all().fold(1.0, |most: f64, it| most.max(it.value));
    let high = all().filter_map(|it| it.high).fold(most, f64::max).min(1.5 * most);
    let low = all().fold(1.0, |low: f64, it| low.min(it.low.unwrap_or(it.value)));
    let margin = 0.04 * (high - low).max(0.2);
    let (low, high) = ((low - margin).max(0.0), high + margin);
    let scale = Scale { low, high, from: 8.0, to: WIDTH - 8.0 };
    let mut picture = Picture::new();
    let bottom = rows_height(groups);
    axis(&mut picture, &scale, bottom);
    let plain = scale.at(1.0);
    picture.line((plain, 0.0), (plain, bottom), "plain");
    rows(&mut picture, groups, |picture, y, row| {
        let place = scale.at(row.value);
        if let (Some(low), Some(high)) = (row.low, row.high) {
            let (low, high) = (scale.at(low), scale.at(high));
            picture.line((low, y + 6.0), (high, y + 6.0), "reach");
            picture.line((low, y + 2.0), (low, y + 10.0), "reach");
            picture.line((high, y + 2.0), (high, y + 10.0), "reach");
        }
        picture.mark((place, y + 6.0), 0);
        row.to_string()
    });
    picture.height = bottom + FOOT;
    picture.figure(caption)
}

/// Milliseconds of a token as stacked bars of [`PARTS`].
pub(super) fn splits(caption: &str, groups: &[Group<[f64; 5]>]) -> Markup {
    let all = groups.iter().flat_map(|group| &group.rows);
    let most = all.map(|(_, parts)| 1000.0 * parts.iter().sum::<f64>()).fold(0.0, f64::max);
    let scale = Scale { low: 0.0, high: most.max(1e-6) * 1.02, from: 8.0, to: WIDTH - 8.0 };
    let mut picture = Picture::new();
    let bottom = rows_height(groups);
    axis(&mut picture, &scale, bottom);
    rows(&mut picture, groups, |picture, y, parts| {
        let mut sum = 0.0;
        for (index, part) in parts.iter().enumerate() {
            let from = scale.at(sum);
            sum += 1000.0 * part;
            picture.bar(from, scale.at(sum), y, &format!("part p{index}"));
        }
        format!("{} ms", short(sum))
    });
    let mut y = bottom + FOOT + 4.0;
    for (index, part) in PARTS.iter().enumerate() {
        // Two beside each other.
        let x = if index % 2 == 0 { 8.0 } else { WIDTH / 2.0 };
        picture.bar(x, x + 16.0, y + 3.0, &format!("part p{index}"));
        picture.text((x + 24.0, y + 14.0), "", part);
        y += if index % 2 == 1 { LINE } else { 0.0 };
    }
    picture.height = y + LINE;
    picture.figure(caption)
}

fn rows_height<T>(groups: &[Group<T>]) -> f64 {
    let headings = groups.iter().filter(|group| !group.name.is_empty()).count();
    let rows: usize = groups.iter().map(|group| group.rows.len()).sum();
    (LINE + 6.0) * headings as f64 + ROW * rows as f64
}

/// Headings, labels with a value at their right, and under each what `draw` draws.
fn rows<T>(
    picture: &mut Picture,
    groups: &[Group<T>],
    mut draw: impl FnMut(&mut Picture, f64, &T) -> String,
) {
    let mut y = 0.0;
    for group in groups {
        if !group.name.is_empty() {
            picture.text((0.0, y + 20.0), "head", &fitted(&group.name, WIDTH));
            y += LINE + 6.0;
        }
        for (label, row) in &group.rows {
            let value = draw(picture, y + 21.0, row);
            let room = WIDTH - 24.0 - LETTER * value.chars().count() as f64;
            picture.text((8.0, y + 15.0), "", &fitted(label, room));
            picture.text((WIDTH - 8.0, y + 15.0), "end", &value);
            y += ROW;
        }
    }
}

/// Upright lines with numbers under them.
fn axis(picture: &mut Picture, scale: &Scale, bottom: f64) {
    for tick in scale.ticks() {
        let x = scale.at(tick);
        picture.line((x, 0.0), (x, bottom), "grid");
        picture.text((x, bottom + 16.0), "tick middle", &scale.name(tick));
    }
}

/// Shares by place in the draft.
pub(super) fn acceptance(caption: &str, lines: &[Line]) -> Markup {
    let places = lines.iter().map(|line| line.points.len()).max().unwrap_or(0);
    let last = (places as f64).max(2.0);
    let step = places.div_ceil(LABELS_MAX).max(1);
    let chart = Chart {
        x: Scale { low: 1.0, high: last, from: LEFT + 8.0, to: WIDTH - RIGHT },
        y: Scale { low: 0.0, high: 1.0, from: CHART - FOOT, to: 10.0 },
        ticks: (1..=places).step_by(step).map(|it| (it as f64, it.to_string())).collect(),
        name: |_, share| format!("{:.0} %", 100.0 * share),
        about: "token of the drafted path",
    };
    chart.figure(caption, lines)
}

/// Most numbers that fit below an axis.
const LABELS_MAX: usize = 8;

/// What a pass takes by its tokens, in passes over one token; a doubling is as wide as any other.
pub(super) fn costs(caption: &str, lines: &[Line]) -> Markup {
    let most = |axis: fn(&(f64, f64)) -> f64| {
        lines.iter().flat_map(|line| line.points.iter().map(axis)).fold(1.0, f64::max)
    };
    let (tokens, high) = (most(|point| point.0), most(|point| point.1));
    let mut ticks: Vec<f64> = lines.iter().flat_map(|it| it.points.iter().map(|at| at.0)).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let doublings = |line: &Line| Line {
        label: line.label.clone(),
        points: line.points.iter().map(|(tokens, cost)| (tokens.log2(), *cost)).collect(),
    };
    let chart = Chart {
        x: Scale { low: 0.0, high: tokens.log2().max(1.0), from: LEFT + 8.0, to: WIDTH - RIGHT },
        y: Scale { low: 0.0, high: high * 1.05, from: CHART - FOOT, to: 10.0 },
        ticks: ticks.iter().map(|tokens| (tokens.log2(), tokens.to_string())).collect(),
        name: |scale, cost| format!("{}×", scale.name(cost)),
        about: "tokens of a pass",
    };
    let lines: Vec<Line> = lines.iter().map(doublings).collect();
    chart.figure(caption, &lines)
}

/// Values over the steps of a run, from zero.
pub(crate) fn steps(caption: &str, lines: &[Line]) -> Markup {
    let most = |axis: fn(&(f64, f64)) -> f64| {
        lines.iter().flat_map(|line| line.points.iter().map(axis)).fold(0.0, f64::max)
    };
    let (last, high) = (most(|point| point.0), most(|point| point.1));
    let x = Scale { low: 0.0, high: last.max(1.0), from: LEFT + 8.0, to: WIDTH - RIGHT };
    let chart = Chart {
        ticks: x.ticks().into_iter().map(|tick| (tick, x.name(tick))).collect(),
        x,
        y: Scale { low: 0.0, high: high.max(1e-3) * 1.05, from: CHART - FOOT, to: 10.0 },
        name: Scale::name,
        about: "step",
    };
    chart.figure(caption, lines)
}

/// Lines over two axes.
struct Chart {
    x: Scale,
    y: Scale,
    /// Places along the lower axis and what stands there.
    ticks: Vec<(f64, String)>,
    /// Numbers of the upright axis.
    name: fn(&Scale, f64) -> String,
    /// What the lower axis is.
    about: &'static str,
}

impl Chart {
    fn figure(&self, caption: &str, lines: &[Line]) -> Markup {
        let mut picture = Picture::new();
        let bottom = self.y.from;
        for tick in self.y.ticks() {
            let y = self.y.at(tick);
            picture.line((LEFT, y), (WIDTH - RIGHT, y), "grid");
            picture.text((LEFT - 6.0, y + 5.0), "tick end", &(self.name)(&self.y, tick));
        }
        for (place, text) in &self.ticks {
            picture.text((self.x.at(*place), bottom + 18.0), "tick middle", text);
        }
        let middle = f64::midpoint(LEFT, WIDTH);
        picture.text((middle, bottom + 38.0), "tick middle", self.about);
        for (index, line) in lines.iter().enumerate() {
            let points: Vec<(f64, f64)> =
                line.points.iter().map(|(x, y)| (self.x.at(*x), self.y.at(*y))).collect();
            stroke(&mut picture, &points, index);
            points.iter().for_each(|point| picture.mark(*point, index));
        }
        let mut y = bottom + 50.0;
        for (index, line) in lines.iter().enumerate() {
            stroke(&mut picture, &[(4.0, y + 8.0), (40.0, y + 8.0)], index);
            picture.mark((22.0, y + 8.0), index);
            picture.text((46.0, y + 13.0), "", &fitted(&line.label, WIDTH - 46.0));
            y += LINE;
        }
        picture.height = y + 4.0;
        picture.figure(caption)
    }
}

/// A line in one of several styles.
fn stroke(picture: &mut Picture, points: &[(f64, f64)], index: usize) {
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let (path, style) = (path.join(" "), index % STYLES);
    let class = format!("line c{style} d{style}");
    picture.add(&html! { polyline points=(path) class=(class) {} });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: f64, reach: f64) -> Interval {
        Interval { value, low: Some(value - reach), high: Some(value + reach) }
    }

    #[test]
    fn names_that_are_too_long_keep_their_ends() {
        assert_eq!(fitted("block 4", 100.0), "block 4");
        let short = fitted("Some-Model-With-A-Long-Name.Q4_0", 100.0);
        assert!(short.starts_with("Some-M") && short.ends_with(".Q4_0"), "{short}");
        assert!(short.contains('…') && short.chars().count() <= 14, "{short}");
    }

    #[test]
    fn numbers_are_no_longer_than_need_be() {
        let all = [0.0, 0.0123, 0.25, 1.25, 12.5, 250.0].map(short);
        assert_eq!(all, ["0", "0.012", "0.25", "1.2", "12", "250"]);
    }

    #[test]
    fn no_more_positions_are_numbered_than_fit() {
        for (len, expected) in [(4, 4), (8, 8), (32, 8)] {
            let points = (1..=len).map(|at| (f64::from(at), 0.5)).collect();
            let svg = acceptance("Acceptance", &[Line { label: "edit".to_owned(), points }]).0;
            // And what the axis is.
            assert_eq!(svg.matches("tick middle").count(), expected + 1, "{svg}");
        }
    }

    #[test]
    fn every_row_is_drawn_under_its_heading() {
        let rows = vec![("block 4".to_owned(), row(1.8, 0.1)), ("<b>".to_owned(), row(0.9, 0.2))];
        let groups = [Group { name: "small & co".to_owned(), rows }];
        let svg = speedups("Speedup", &groups).0;
        for said in
            ["small &amp; co", "block 4", "&lt;b&gt;", "1.80 (1.70–1.90)", "class=\"plain\""]
        {
            assert!(svg.contains(said), "{said}: {svg}");
        }
        assert_eq!(svg.matches("class=\"mark c0\"").count(), 2);
    }

    #[test]
    fn lines_differ_in_mark_and_dash() {
        let line =
            |label: &str| Line { label: label.to_owned(), points: vec![(1.0, 0.8), (2.0, 0.5)] };
        let svg = acceptance("Acceptance", &[line("one"), line("two")]).0;
        assert!(svg.contains("line c0 d0") && svg.contains("line c1 d1"), "{svg}");
        assert!(svg.contains(">100 %<") && svg.contains(">two<"), "{svg}");
        let svg =
            costs("Cost", &[Line { points: vec![(1.0, 1.0), (8.0, 2.0)], ..line("target") }]).0;
        assert!(svg.contains(">8<") && svg.contains(">2.0×<"), "{svg}");
    }

    #[test]
    fn steps_and_values_begin_at_zero() {
        let line = Line {
            label: "overlap".to_owned(),
            points: vec![(0.0, 0.1), (50.0, 0.3), (90.0, 0.4)],
        };
        let svg = steps("Overlap", &[line]).0;
        assert!(svg.contains(">0<") && svg.contains(">80<") && svg.contains(">0.4<"), "{svg}");
        assert_eq!(svg.matches("class=\"mark c0\"").count(), 4, "three points and the legend's");
    }

    #[test]
    fn bars_are_stacked_from_the_left() {
        let parts = [0.01, 0.005, 0.0, 0.001, 0.0];
        let rows = vec![("block 4".to_owned(), parts)];
        let svg = splits("Time", &[Group { name: String::new(), rows }]).0;
        assert!(svg.contains("16 ms") && svg.matches("part p0").count() == 2, "{svg}");
    }
}
