//! Palette: fixed semantic colours, and colours derived from the brand's accent.

use std::fmt::Write as _;

use crate::colour::Colour;

/// Background colours of a colour scheme, and the required contrast of the accent on them.
struct Scheme {
    surface: Colour,
    canvas: Colour,
    sunken: Colour,
    /// Minimum contrast of the accent as text.
    text: f64,
    /// Share of the accent in its tinted background.
    wash: f64,
    /// Whether contrast grows with lightness.
    dark: bool,
}

const LIGHT: Scheme = Scheme {
    surface: Colour::of(0xffffff),
    canvas: Colour::of(0xf6f7f8),
    sunken: Colour::of(0xeef0f3),
    text: 4.55,
    wash: 0.08,
    dark: false,
};

const DARK: Scheme = Scheme {
    surface: Colour::of(0x161a1f),
    canvas: Colour::of(0x0e1115),
    sunken: Colour::of(0x1f242b),
    text: 6.5,
    wash: 0.14,
    dark: true,
};

/// Minimum contrast of accent lines, with a margin over the 3 of WCAG 2.2, criterion 1.4.11.
const LINE: f64 = 3.05;

/// Minimum contrast of text on an accent fill (WCAG 2.2, criterion 1.4.3).
const ON_ACCENT: f64 = 4.5;

/// Colours derived from an accent for one scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DerivedColours {
    /// Links and other text.
    text: Colour,
    /// Borders, markers and meters.
    line: Colour,
    /// Background of the current navigation entry.
    wash: Colour,
}

impl Scheme {
    fn derived_colours(&self, accent: Colour) -> DerivedColours {
        let grounds = [self.surface, self.canvas, self.sunken];
        let wash = accent.blend_onto(self.surface, self.wash);
        let text_grounds = [self.surface, self.canvas, self.sunken, wash];
        DerivedColours {
            text: accent.adjust_lightness_until(self.dark, |colour| {
                colour.contrast_min(&text_grounds) >= self.text
            }),
            line: accent
                .adjust_lightness_until(self.dark, |colour| colour.contrast_min(&grounds) >= LINE),
            wash,
        }
    }

    fn properties(&self, accent: Colour) -> String {
        let DerivedColours { text, line, wash } = self.derived_colours(accent);
        format!("--accent-text:{text};--accent-line:{line};--accent-wash:{wash};")
    }
}

/// White if the contrast on the accent suffices, else black; at least one colour suffices.
fn on_accent(accent: Colour) -> Colour {
    if accent.contrast(Colour::WHITE) >= ON_ACCENT {
        Colour::WHITE
    } else {
        Colour::BLACK
    }
}

/// The style sheet of a brand: custom properties only.
pub(crate) fn sheet(accent: Colour) -> String {
    let mut sheet = String::with_capacity(400);
    let on_accent = on_accent(accent);
    let light = LIGHT.properties(accent);
    let dark = DARK.properties(accent);
    // Writing to a `String` cannot fail.
    let _ = write!(
        sheet,
        ":root{{--accent:{accent};--on-accent:{on_accent};{light}}}\n\
         @media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    );
    sheet
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn derived_colours_are_stable() {
        // accent     on it     light: text, line     dark: text, line
        check(
            "#0b6675", "#ffffff", "#0b6675", "#0b6675", "#66b3c3", "#277887",
        );
        check(
            "#ffb000", "#000000", "#926301", "#b87e06", "#ffb000", "#ffb000",
        );
        check(
            "#111111", "#ffffff", "#111111", "#111111", "#a8a8a8", "#6e6e6e",
        );
        check(
            "#c7f0d8", "#000000", "#4f745f", "#6b917b", "#c7f0d8", "#c7f0d8",
        );
        check(
            "#2b4eff", "#ffffff", "#2b4eff", "#2b4eff", "#82a5fe", "#345cfe",
        );
        check(
            "#e11d2e", "#ffffff", "#d90a27", "#e11d2e", "#fe837c", "#e11d2e",
        );

        fn check(accent: &str, on: &str, text: &str, line: &str, dark: &str, dark_line: &str) {
            let accent: Colour = accent.parse().expect("a colour");
            let (light, night) = (LIGHT.derived_colours(accent), DARK.derived_colours(accent));
            let made = [
                on_accent(accent),
                light.text,
                light.line,
                night.text,
                night.line,
            ];
            let made = made.map(|colour| colour.to_string());
            assert_eq!(made, [on, text, line, dark, dark_line], "of {accent}");
        }
    }

    proptest! {
        #[test]
        fn every_accent_yields_sufficient_contrast(hex in 0u32..0x100_0000) {
            let accent = Colour::of(hex);
            prop_assert!(accent.contrast(on_accent(accent)) >= ON_ACCENT);
            let inks = [(&LIGHT, 0x14181d, 0x47505a), (&DARK, 0xeceff2, 0xb4bcc5)];
            for (scheme, ink, second) in inks {
                let made = scheme.derived_colours(accent);
                let grounds = [scheme.surface, scheme.canvas, scheme.sunken];
                prop_assert!(made.text.contrast_min(&grounds) >= scheme.text);
                prop_assert!(made.text.contrast(made.wash) >= scheme.text);
                prop_assert!(made.line.contrast_min(&grounds) >= LINE);
                prop_assert!(Colour::of(ink).contrast(made.wash) >= 9.9);
                prop_assert!(Colour::of(second).contrast(made.wash) >= 4.55);
            }
        }
    }
}
