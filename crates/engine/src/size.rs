//! Sizes as people write them: `4096`, `64M`, `1.5G`, `1GiB`.

/// Parses a number of bytes; the suffixes K, M, G, T (also KiB, MB and so on) are powers
/// of 1024.
///
/// # Errors
/// The fault of the text.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(format!("'{suffix}' is not one of K, M, G, T")),
    };
    let too_big = || format!("{text} is more bytes than there can be");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(too_big);
    }
    let number: f64 = number
        .parse()
        .map_err(|_| format!("'{text}' is not a size such as 64M"))?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes < u64::MAX as f64 {
        Ok(bytes as u64)
    } else {
        Err(too_big())
    }
}

/// A number of bytes for people: `1.5 GiB`.
pub fn display(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_size_may_have_a_unit() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64M"), Ok(64 << 20));
        assert_eq!(parse("1.5g"), Ok(3 << 29));
        assert_eq!(parse("1GiB"), Ok(1 << 30));
        assert_eq!(parse("0"), Ok(0));
        for wrong in ["", "M", "64Q", "-1", "1..5K", "16777216T", "9e9"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
