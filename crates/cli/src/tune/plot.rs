//! Speed-up against draft length, in the terminal and as SVG.

use std::fmt::Write as _;

use super::Candidate;
use super::measure::Final;
use super::trial::{Forecasts, Setting};

/// Rows of the terminal's plot, and columns of one length.
const ROWS: usize = 12;
const COLUMN: usize = 5;
const MARKS: [char; 8] = ['o', 'x', '+', '*', '#', '@', '%', '&'];

/// Size of the chart and its margins; the names of the lines come below it, one on each line.
const SIZE: (f64, f64) = (640.0, 400.0);
const LINE: f64 = 20.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Told apart by people who do not see all colours (Okabe and Ito).
const COLORS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

fn name(forecast: &Forecasts, candidates: &[Candidate]) -> String {
    let drafter = &candidates[forecast.setting.drafter].name;
    match forecast.setting.width {
        1 => drafter.clone(),
        width => format!("{drafter}, {width} paths"),
    }
}

/// The range of speed-ups, with plain decoding in it.
fn range(forecasts: &[Forecasts]) -> (f64, f64) {
    let all = || forecasts.iter().flat_map(|forecast| forecast.speedups.iter().copied());
    let (low, high) = (all().fold(1.0, f64::min), all().fold(1.0, f64::max));
    ((low * 5.0).floor() / 5.0, (high * 5.0).ceil() / 5.0 + 0.1)
}

/// A plot of characters.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a row between 0 and ROWS"
)]
pub(super) fn terminal(forecasts: &[Forecasts], candidates: &[Candidate]) -> String {
    let (low, high) = range(forecasts);
    let row = |speedup: f64| {
        ROWS - 1 - ((speedup - low) / (high - low) * (ROWS - 1) as f64).round() as usize
    };
    let len_max = forecasts.iter().map(|forecast| forecast.speedups.len()).max().unwrap_or(0);
    let mut grid = vec![vec![' '; COLUMN * len_max + 1]; ROWS];
    grid[row(1.0)].fill('-');
    for (forecast, mark) in forecasts.iter().zip(MARKS.iter().cycle()) {
        for (index, speedup) in forecast.speedups.iter().enumerate() {
            grid[row(*speedup)][COLUMN * (index + 1) - COLUMN / 2] = *mark;
        }
    }
    let mut text = "Forecast speed-up against draft length; ---- is plain decoding\n".to_owned();
    for (index, line) in grid.iter().enumerate() {
        let value = high - (high - low) * index as f64 / (ROWS - 1) as f64;
        let line: String = line.iter().collect();
        writeln!(text, "  {value:>5.2} |{}", line.trim_end()).expect("strings take all text");
    }
    let lens: String = (1..=len_max).map(|len| format!("{len:>COLUMN$}")).collect();
    writeln!(text, "         {}", &lens[1..]).expect("strings take all text");
    for (forecast, mark) in forecasts.iter().zip(MARKS.iter().cycle()) {
        writeln!(text, "  {mark} {}", name(forecast, candidates)).expect("strings take all text");
    }
    text
}

/// Where lengths and speed-ups are in the picture.
struct Frame {
    low: f64,
    high: f64,
    len_max: usize,
    names: usize,
}

impl Frame {
    fn x(&self, len: usize) -> f64 {
        let share = len.saturating_sub(1) as f64 / (self.len_max - 1) as f64;
        LEFT + share * (SIZE.0 - LEFT - RIGHT)
    }

    fn y(&self, speedup: f64) -> f64 {
        TOP + (self.high - speedup) / (self.high - self.low) * (SIZE.1 - TOP - BOTTOM)
    }

    /// Title, grid and numbers.
    fn axes(&self) -> String {
        let (width, height) = SIZE;
        let all = height + LINE * (self.names + 1) as f64 + 10.0;
        let (first, last) = (self.x(1), self.x(self.len_max));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {all}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">Speed-up over plain decoding, by draft \
             length</text>\n"
        );
        let mut tick = (self.low * 5.0).ceil() / 5.0;
        while tick <= self.high + 1e-9 {
            let (at, plain) = (self.y(tick), (tick - 1.0).abs() < 1e-9);
            let stroke = if plain { "#444\" stroke-width=\"1.5" } else { "#ddd" };
            let (label, below) = (first - 8.0, at + 4.0);
            svg += &format!(
                "<line x1=\"{first}\" x2=\"{last}\" y1=\"{at:.1}\" y2=\"{at:.1}\" \
                 stroke=\"{stroke}\"/>\n\
                 <text x=\"{label:.1}\" y=\"{below:.1}\" text-anchor=\"end\">{tick:.1}</text>\n"
            );
            tick += 0.2;
        }
        let below = height - BOTTOM + 20.0;
        for len in 1..=self.len_max {
            let at = self.x(len);
            svg += &format!(
                "<text x=\"{at:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{len}</text>\n"
            );
        }
        let (middle, bottom) = (f64::midpoint(first, last), height - 10.0);
        svg += &format!(
            "<text x=\"{middle:.1}\" y=\"{bottom:.1}\" text-anchor=\"middle\">tokens of a drafted \
             path</text>\n"
        );
        svg
    }
}

/// A picture: lines for forecasts, rings for what was measured.
pub(super) fn svg(forecasts: &[Forecasts], finals: &[Final], candidates: &[Candidate]) -> String {
    let measured = finals.iter().filter_map(Final::measured);
    let (low, high) = range(forecasts);
    let (low, high) = measured.fold((low, high), |(low, high), it| (low.min(it), high.max(it)));
    let len_max = forecasts.iter().map(|it| it.speedups.len()).max().unwrap_or(1).max(2);
    let frame = Frame { low, high, len_max, names: forecasts.len() };
    let mut svg = frame.axes();
    let label = LEFT;
    for (index, forecast) in forecasts.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        let dash = if forecast.setting.width > 1 { " stroke-dasharray=\"6 4\"" } else { "" };
        let style = format!("fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"{dash}");
        let points: Vec<String> = (1..)
            .zip(&forecast.speedups)
            .map(|(len, speedup)| format!("{:.1},{:.1}", frame.x(len), frame.y(*speedup)))
            .collect();
        svg += &format!("<polyline points=\"{}\" {style}/>\n", points.join(" "));
        let (at, end) = (SIZE.1 + LINE * (index as f64 + 0.5), label + 22.0);
        let name = escape(&name(forecast, candidates));
        svg += &format!(
            "<line x1=\"{label}\" x2=\"{end}\" y1=\"{at}\" y2=\"{at}\" {style}/>\n\
             <text x=\"{}\" y=\"{}\">{name}</text>\n",
            end + 6.0,
            at + 4.0
        );
        let same = |setting: &Setting| {
            (setting.drafter, setting.width) == (forecast.setting.drafter, forecast.setting.width)
        };
        for result in finals.iter().filter(|it| !it.adaptive && same(&it.setting)) {
            let Some(measured) = result.measured() else { continue };
            svg += &format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"#fff\" stroke=\"{color}\" \
                 stroke-width=\"2\"/>\n",
                frame.x(result.setting.len),
                frame.y(measured)
            );
        }
    }
    let below = SIZE.1 + LINE * (forecasts.len() as f64 + 0.8);
    svg += &format!(
        "<text x=\"{label}\" y=\"{below}\" fill=\"#444\">lines: forecast; rings: measured</text>\n</svg>\n"
    );
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
