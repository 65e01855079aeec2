//! Speed-up against draft length, in the terminal and as SVG.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::Candidate;
use super::measure::Final;
use super::trial::{Forecasts, Setting};
use crate::plot::{Scale, px};

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

/// The range of speedups, with plain decoding in it.
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
    let mut text = "Forecast speedup against draft length; ---- is plain decoding\n".to_owned();
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

/// Where lengths and speedups are in the picture.
struct Frame {
    x: Scale,
    y: Scale,
    len_max: usize,
}

impl Frame {
    fn new(low: f64, high: f64, len_max: usize) -> Self {
        let (width, height) = SIZE;
        Self {
            x: Scale { low: 1.0, high: len_max as f64, from: LEFT, to: width - RIGHT },
            y: Scale { low, high, from: height - BOTTOM, to: TOP },
            len_max,
        }
    }

    fn at(&self, len: usize, speedup: f64) -> (String, String) {
        (px(self.x.at(len as f64)), px(self.y.at(speedup)))
    }

    /// Title, grid and numbers.
    fn axes(&self) -> Markup {
        let (first, last) = (self.x.from, self.x.to);
        let below = SIZE.1 - BOTTOM + 20.0;
        let ticks = (0..).map(|index| (self.y.low * 5.0).ceil() / 5.0 + 0.2 * f64::from(index));
        html! {
            rect width="100%" height="100%" fill="#fff" {}
            text x=(LEFT) y="22" font-size="15" { "Speedup over plain decoding, by draft length" }
            @for tick in ticks.take_while(|tick| *tick <= self.y.high + 1e-9) {
                @let (at, plain) = (self.y.at(tick), (tick - 1.0).abs() < 1e-9);
                @let (color, width) = if plain { ("#444", "1.5") } else { ("#ddd", "1") };
                line x1=(first) x2=(last) y1=(px(at)) y2=(px(at)) stroke=(color)
                    stroke-width=(width) {}
                text x=(px(first - 8.0)) y=(px(at + 4.0)) text-anchor="end" { (px(tick)) }
            }
            @for len in 1..=self.len_max {
                text x=(px(self.x.at(len as f64))) y=(px(below)) text-anchor="middle" { (len) }
            }
            text x=(px(f64::midpoint(first, last))) y=(px(SIZE.1 - 10.0)) text-anchor="middle" {
                "tokens of a drafted path"
            }
        }
    }
}

/// A picture: lines for forecasts, rings for what was measured.
pub(super) fn svg(forecasts: &[Forecasts], finals: &[Final], candidates: &[Candidate]) -> String {
    let measured = finals.iter().filter_map(Final::measured);
    let (low, high) = range(forecasts);
    let (low, high) = measured.fold((low, high), |(low, high), it| (low.min(it), high.max(it)));
    let len_max = forecasts.iter().map(|it| it.speedups.len()).max().unwrap_or(1).max(2);
    let frame = Frame::new(low, high, len_max);
    let (width, height) = SIZE;
    let names = forecasts.len() as f64;
    let view = format!("0 0 {width} {}", height + LINE * (names + 1.0) + 10.0);
    let picture = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(view) font-family="sans-serif" font-size="13" {
            (frame.axes())
            @for (index, forecast) in forecasts.iter().enumerate() {
                (line(&frame, forecast, index))
                (legend(&name(forecast, candidates), forecast, index))
                (rings(&frame, forecast, finals, index))
            }
            text x=(LEFT) y=(height + LINE * (names + 0.8)) fill="#444" {
                "lines: forecast; rings: measured"
            }
        }
    };
    picture.into_string()
}

/// The colour of a forecast, and its dashes where it has several paths.
fn style(forecast: &Forecasts, index: usize) -> (&'static str, Option<&'static str>) {
    (COLORS[index % COLORS.len()], (forecast.setting.width > 1).then_some("6 4"))
}

fn line(frame: &Frame, forecast: &Forecasts, index: usize) -> Markup {
    let (color, dash) = style(forecast, index);
    let point = |(len, speedup): (usize, &f64)| {
        let (x, y) = frame.at(len, *speedup);
        format!("{x},{y}")
    };
    let points: Vec<String> = (1..).zip(&forecast.speedups).map(point).collect();
    html! {
        polyline points=(points.join(" ")) fill="none" stroke=(color) stroke-width="2"
            stroke-dasharray=[dash] {}
    }
}

/// A line's name, below the chart.
fn legend(name: &str, forecast: &Forecasts, index: usize) -> Markup {
    let (color, dash) = style(forecast, index);
    let (at, end) = (SIZE.1 + LINE * (index as f64 + 0.5), LEFT + 22.0);
    html! {
        line x1=(LEFT) x2=(end) y1=(at) y2=(at) fill="none" stroke=(color) stroke-width="2"
            stroke-dasharray=[dash] {}
        text x=(end + 6.0) y=(at + 4.0) { (name) }
    }
}

/// What was measured of a forecast's drafter and width.
fn rings(frame: &Frame, forecast: &Forecasts, finals: &[Final], index: usize) -> Markup {
    let (color, _) = style(forecast, index);
    let same = |setting: &Setting| {
        (setting.drafter, setting.width) == (forecast.setting.drafter, forecast.setting.width)
    };
    let own = finals.iter().filter(|it| !it.adaptive && same(&it.setting));
    let places = own.filter_map(|it| Some(frame.at(it.setting.len, it.measured()?)));
    html! {
        @for (x, y) in places {
            circle cx=(x) cy=(y) r="5" fill="#fff" stroke=(color) stroke-width="2" {}
        }
    }
}
