//! Colours: parsing, contrast (WCAG 2.2), and lighter or darker shades of the same hue.

use std::fmt;
use std::str::FromStr;

/// Lightness step of the search for sufficient contrast.
const STEP: f64 = 0.0025;

/// Chroma step of gamut mapping to sRGB.
const CHROMA_STEP: f64 = 0.002;

/// An sRGB colour, eight bits per channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// Red, green, blue.
    pub channels: [u8; 3],
}

/// An invalid colour.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a colour; write `#` and six hex digits, such as `#0b6675`")]
pub struct ColourError(String);

impl Colour {
    pub const WHITE: Colour = Colour { channels: [255; 3] };
    pub const BLACK: Colour = Colour { channels: [0; 3] };

    /// A colour from `0xRRGGBB`.
    pub const fn of(hex: u32) -> Colour {
        Colour {
            channels: [(hex >> 16) as u8, (hex >> 8) as u8, hex as u8],
        }
    }

    /// Contrast ratio of two colours, 1 to 21 (WCAG 2.2).
    pub fn contrast(self, other: Colour) -> f64 {
        let (one, other) = (self.luminance(), other.luminance());
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    /// The lowest contrast with any of `grounds`.
    pub(crate) fn contrast_min(self, grounds: &[Colour]) -> f64 {
        let ratios = grounds.iter().map(|&ground| self.contrast(ground));
        ratios.fold(f64::INFINITY, f64::min)
    }

    /// Blends a share (0 to 1) of this colour onto `ground`, per channel.
    pub(crate) fn blend_onto(self, ground: Colour, share: f64) -> Colour {
        let mut channels = [0; 3];
        for (at, channel) in channels.iter_mut().enumerate() {
            let (own, other) = (f64::from(self.channels[at]), f64::from(ground.channels[at]));
            *channel = (own * share + other * (1.0 - share)).round() as u8;
        }
        Colour { channels }
    }

    /// The first colour of this hue, upwards or downwards in lightness, accepted by `accept`; otherwise white or black.
    pub(crate) fn adjust_lightness_until(
        self,
        lighter: bool,
        accept: impl Fn(Colour) -> bool,
    ) -> Colour {
        if accept(self) {
            return self;
        }
        let start = Oklch::of(self);
        let mut lightness = start.lightness;
        loop {
            lightness += if lighter { STEP } else { -STEP };
            if !(0.0..=1.0).contains(&lightness) {
                return if lighter {
                    Colour::WHITE
                } else {
                    Colour::BLACK
                };
            }
            let colour = Oklch { lightness, ..start }.gamut_mapped();
            if accept(colour) {
                return colour;
            }
        }
    }

    /// Relative luminance (WCAG 2.2).
    fn luminance(self) -> f64 {
        let [red, green, blue] = self.linear();
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }

    fn linear(self) -> [f64; 3] {
        self.channels.map(|channel| {
            let value = f64::from(channel) / 255.0;
            if value <= 0.04045 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        })
    }
}

impl FromStr for Colour {
    type Err = ColourError;

    fn from_str(text: &str) -> Result<Colour, ColourError> {
        let digits = text.strip_prefix('#').filter(|digits| {
            digits.len() == 6 && digits.bytes().all(|one| one.is_ascii_hexdigit())
        });
        let hex = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        hex.map(Colour::of)
            .ok_or_else(|| ColourError(text.to_owned()))
    }
}

impl fmt::Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [red, green, blue] = self.channels;
        write!(f, "#{red:02x}{green:02x}{blue:02x}")
    }
}

/// A colour in polar Oklab: lightness (0 to 1), chroma and hue (Björn Ottosson; CSS Color 4).
#[derive(Clone, Copy)]
struct Oklch {
    lightness: f64,
    chroma: f64,
    /// Radians.
    hue: f64,
}

impl Oklch {
    fn of(colour: Colour) -> Oklch {
        let [red, green, blue] = colour.linear();
        let long = 0.412_221_470_8 * red + 0.536_332_536_3 * green + 0.051_445_992_9 * blue;
        let middle = 0.211_903_498_2 * red + 0.680_699_545_1 * green + 0.107_396_956_6 * blue;
        let short = 0.088_302_461_9 * red + 0.281_718_837_6 * green + 0.629_978_700_5 * blue;
        let [long, middle, short] = [long, middle, short].map(f64::cbrt);
        let lightness = 0.210_454_255_3 * long + 0.793_617_785_0 * middle - 0.004_072_046_8 * short;
        let a = 1.977_998_495_1 * long - 2.428_592_205_0 * middle + 0.450_593_709_9 * short;
        let b = 0.025_904_037_1 * long + 0.782_771_766_2 * middle - 0.808_675_766_0 * short;
        Oklch {
            lightness,
            chroma: a.hypot(b),
            hue: b.atan2(a),
        }
    }

    /// The channels in linear light, possibly outside of 0 to 1.
    fn linear(self) -> [f64; 3] {
        let (a, b) = (self.chroma * self.hue.cos(), self.chroma * self.hue.sin());
        let long = self.lightness + 0.396_337_777_4 * a + 0.215_803_757_3 * b;
        let middle = self.lightness - 0.105_561_345_8 * a - 0.063_854_172_8 * b;
        let short = self.lightness - 0.089_484_177_5 * a - 1.291_485_548_0 * b;
        let [long, middle, short] = [long, middle, short].map(|root| root * root * root);
        [
            4.076_741_662_1 * long - 3.307_711_591_3 * middle + 0.230_969_929_2 * short,
            -1.268_438_004_6 * long + 2.609_757_401_1 * middle - 0.341_319_396_5 * short,
            -0.004_196_086_3 * long - 0.703_418_614_7 * middle + 1.707_614_701_0 * short,
        ]
    }

    fn is_in_gamut(self) -> bool {
        self.linear()
            .iter()
            .all(|channel| (-1e-4..=1.0 + 1e-4).contains(channel))
    }

    /// Gamut mapping: lowers chroma in steps until the colour is in sRGB.
    fn gamut_mapped(mut self) -> Colour {
        while !self.is_in_gamut() && self.chroma > 0.0 {
            self.chroma = (self.chroma - CHROMA_STEP).max(0.0);
        }
        self.rounded()
    }

    fn rounded(self) -> Colour {
        let channels = self.linear().map(|value| {
            let value = value.clamp(0.0, 1.0);
            let value = if value <= 0.003_130_8 {
                value * 12.92
            } else {
                1.055 * value.powf(1.0 / 2.4) - 0.055
            };
            (value * 255.0).round() as u8
        });
        Colour { channels }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn colours_are_six_hex_digits() {
        assert_eq!("#0B6675".parse(), Ok(Colour::of(0x0b6675)));
        for text in [
            "", "#", "0b6675", "#0b667", "#0b66755", "#0b667g", "#+b6675",
        ] {
            assert!(text.parse::<Colour>().is_err(), "{text}");
        }
        assert_eq!(Colour::of(0x00ff0a).to_string(), "#00ff0a");
    }

    #[test]
    fn contrast_is_that_of_wcag() {
        assert!((Colour::BLACK.contrast(Colour::WHITE) - 21.0).abs() < 1e-9);
        // The lightest grey on white that passes according to the WCAG examples.
        assert!((Colour::of(0x767676).contrast(Colour::WHITE) - 4.54).abs() < 0.01);
    }

    proptest! {
        #[test]
        fn a_colour_round_trips_through_its_polar_form(hex in 0u32..0x100_0000) {
            let colour = Colour::of(hex);
            let back = Oklch::of(colour).gamut_mapped();
            for (one, other) in colour.channels.into_iter().zip(back.channels) {
                prop_assert!(one.abs_diff(other) <= 1, "{} became {}", colour, back);
            }
        }
    }
}
