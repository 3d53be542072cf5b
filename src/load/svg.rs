//! Plots a run as SVG: latency by percentile, throughput over time. Self-contained, for any viewer.
//! Pure.

use std::fmt::Write;

use super::Report;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 720.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 30.0;

/// Distinguishable with red-green color blindness too.
const COLORS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// A line of a panel.
struct Series<'a> {
    name: &'a str,
    points: Vec<(f64, f64)>,
}

/// A panel between two y coordinates.
struct Panel<'a> {
    top: f64,
    bottom: f64,
    title: &'a str,
    x_label: &'a str,
    y_label: &'a str,
    x_max: f64,
    /// Positions and labels of the marks on the x axis.
    marks: Vec<(f64, String)>,
    series: Vec<Series<'a>>,
}

/// Draws a report.
pub(crate) fn draw(report: &Report) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\" role=\"img\">\n<title>{0}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"{LEFT}\" y=\"28\" font-size=\"15\" font-weight=\"bold\">{0}</text>\n",
        escape(&report.title())
    );
    let figures = &report.figures;
    let nines = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        points
            .iter()
            .map(|(q, ms)| (-(1.0 - q).max(1e-9).log10(), *ms))
            .collect()
    };
    let name = if report.noisy.is_some() {
        "beside a flood"
    } else {
        "latency"
    };
    let mut latency = vec![Series {
        name,
        points: nines(&figures.percentiles),
    }];
    if let Some(noisy) = &report.noisy {
        latency.push(Series {
            name: "alone",
            points: nines(&noisy.alone.percentiles),
        });
    }
    let x_max = latency
        .iter()
        .flat_map(|series| &series.points)
        .map(|(x, _)| *x)
        .fold(1.0, f64::max);
    let marks = [
        (0.0, "0 %"),
        (std::f64::consts::LOG10_2, "50 %"),
        (1.0, "90 %"),
        (2.0, "99 %"),
        (3.0, "99.9 %"),
        (4.0, "99.99 %"),
        (5.0, "99.999 %"),
    ];
    let due = if report.offering == "open" {
        "Latency from the moment a turn was due"
    } else {
        "Latency of a turn"
    };
    let marks = marks
        .into_iter()
        .filter(|(x, _)| *x <= x_max + 0.01)
        .map(|(x, name)| (x, name.to_owned()))
        .collect();
    let top = 60.0;
    Panel {
        top,
        bottom: 340.0,
        title: due,
        x_label: "part of the turns",
        y_label: "ms",
        x_max,
        marks,
        series: latency,
    }
    .draw(&mut svg);

    let over_time = |turns: &dyn Fn(&(u64, u64)) -> u64| -> Vec<(f64, f64)> {
        figures
            .timeline
            .iter()
            .enumerate()
            .map(|(second, counts)| (second as f64, turns(counts) as f64))
            .collect()
    };
    let mut throughput = vec![Series {
        name: "served",
        points: over_time(&|(served, _)| *served),
    }];
    if figures.timeline.iter().any(|(_, others)| *others > 0) {
        throughput.push(Series {
            name: "refused or failed",
            points: over_time(&|(_, others)| *others),
        });
    }
    let x_max = (figures.timeline.len().saturating_sub(1) as f64).max(1.0);
    let step = nice(x_max / 8.0).max(1.0);
    let marks = (0..=(x_max / step) as u32)
        .map(|n| (f64::from(n) * step, format!("{}", f64::from(n) * step)))
        .collect();
    let title = "Throughput";
    let x_label = "seconds after the warm-up";
    let y_label = "turns/s";
    Panel {
        top: 420.0,
        bottom: 660.0,
        title,
        x_label,
        y_label,
        x_max,
        marks,
        series: throughput,
    }
    .draw(&mut svg);
    svg.push_str("</svg>\n");
    svg
}

impl Panel<'_> {
    fn draw(&self, svg: &mut String) {
        let y_max = self
            .series
            .iter()
            .flat_map(|series| &series.points)
            .map(|(_, y)| *y)
            .fold(0.0, f64::max);
        let step = nice(y_max.max(1e-3) / 4.0);
        let y_max = (y_max / step).ceil().max(1.0) * step;
        let x_at = |x: f64| LEFT + (WIDTH - LEFT - RIGHT) * (x / self.x_max).clamp(0.0, 1.0);
        let y_at = |y: f64| self.bottom - (self.bottom - self.top) * (y / y_max).clamp(0.0, 1.0);
        let right = WIDTH - RIGHT;
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        let _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>",
            self.top - 12.0,
            escape(self.title)
        );
        for n in 0..=(y_max / step).round() as u32 {
            let value = f64::from(n) * step;
            let y = y_at(f64::from(n) * step);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>"
            );
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                short(value)
            );
        }
        for (x, name) in &self.marks {
            let x = x_at(*x);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#eee\"/>",
                self.top, self.bottom
            );
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                self.bottom + 18.0,
                escape(name)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            self.bottom + 38.0,
            escape(self.x_label)
        );
        let y_middle = (self.top + self.bottom) / 2.0;
        let _ = writeln!(
            svg,
            "<text x=\"20\" y=\"{y_middle:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 20 {y_middle:.1})\">{}</text>",
            escape(self.y_label)
        );
        for (index, (series, color)) in self.series.iter().zip(COLORS.iter().cycle()).enumerate() {
            let points: Vec<String> = series
                .points
                .iter()
                .map(|(x, y)| format!("{:.1},{:.1}", x_at(*x), y_at(*y)))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" points=\"{}\"/>",
                points.join(" ")
            );
            let x = LEFT + 12.0 + 160.0 * index as f64;
            let y = self.top + 14.0;
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{color}\"/>",
                y - 6.0
            );
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
                x + 20.0,
                escape(series.name)
            );
        }
    }
}

/// The smallest of 1, 2 or 5 times a power of ten that is at least `step`.
fn nice(step: f64) -> f64 {
    let power = 10f64.powf(step.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|nice| *nice >= step * 0.999_999)
        .unwrap_or(10.0 * power)
}

fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_marked_in_numbers_that_people_read() {
        for (step, expected) in [
            (0.0007, 0.001),
            (0.3, 0.5),
            (1.0, 1.0),
            (1.2, 2.0),
            (4.9, 5.0),
            (7.0, 10.0),
            (230.0, 500.0),
        ] {
            assert!(
                (nice(step) - expected).abs() < expected * 1e-6,
                "{step}: {}",
                nice(step)
            );
        }
        assert_eq!(
            (short(0.5), short(20.0), short(0.001)),
            ("0.5".into(), "20".into(), "0.001".into())
        );
    }

    #[test]
    fn words_from_outside_stay_words() {
        assert_eq!(
            escape("<a href=\"x\">&"),
            "&lt;a href=&quot;x&quot;&gt;&amp;"
        );
    }
}
