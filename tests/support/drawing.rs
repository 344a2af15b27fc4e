//! Reads a picture in SVG for a test: whether it is well-formed, which texts it has, and whether a
//! person can read them and find each colour in the legend.
//!
//! The reader knows only the XML that such a picture has: elements, attributes in double quotes,
//! text, the five entities. It panics at anything else.

/// The texts of a picture, in the order of the file.
///
/// Panics if the picture is not well-formed SVG.
#[track_caller]
pub fn texts(svg: &str) -> Vec<String> {
    texts_in(svg, "text")
}

/// The text in `metadata`, which says what the picture shows.
#[track_caller]
pub fn metadata(svg: &str) -> String {
    texts_in(svg, "metadata").concat()
}

/// Checks that every text is at least 13 pixels high in a picture as wide as README, and that each
/// colour except black, greys and white has a swatch of one size in the legend.
#[track_caller]
pub fn assert_legible(svg: &str) {
    assert!(svg.contains("viewBox=\"0 0 830 "), "not as wide as README");
    for size in values(svg, "font-size") {
        let pixels: f64 = size.parse().expect("a number of pixels");
        assert!(pixels >= 13.0, "a text of {pixels} pixels");
    }
    let neutral = ["none", "#222222", "#5f5f5f", "#d0d0d0", "#ffffff"];
    for colour in values(svg, "fill").chain(values(svg, "stroke")) {
        let swatch = format!("width=\"22.0\" height=\"16.0\" fill=\"{colour}\"");
        let known = neutral.contains(&colour) || svg.contains(&swatch);
        assert!(known, "{colour} is not in the legend");
    }
}

/// The values of all attributes with this name.
fn values<'a>(svg: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {name}=\"");
    let places: Vec<usize> = svg.match_indices(&start).map(|(at, _)| at + start.len()).collect();
    places.into_iter().filter_map(|at| svg[at..].split('"').next())
}

/// The texts in elements of this name.
#[track_caller]
fn texts_in(svg: &str, wanted: &str) -> Vec<String> {
    let mut open: Vec<&str> = Vec::new();
    let mut texts = Vec::new();
    let mut roots = 0;
    let mut rest = svg;
    while let Some(start) = rest.find('<') {
        let text = plain(rest[..start].trim());
        if !text.is_empty() {
            let inside = open.last().copied().unwrap_or("nothing");
            let may = ["text", "title", "metadata"].contains(&inside);
            assert!(may, "{text:?} is in {inside}");
            texts.extend((inside == wanted).then_some(text));
        }
        let end = rest.find('>').unwrap_or_else(|| panic!("{:?} does not end", &rest[start..]));
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed and not open");
            continue;
        }
        let (tag, empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase()), "an element {name:?}");
        check_attributes(attributes);
        roots += usize::from(open.is_empty());
        if !empty {
            open.push(name);
        }
    }
    assert!(rest.trim().is_empty() && open.is_empty(), "{rest:?}, and {open:?} are still open");
    assert!(roots == 1 && svg.trim_start().starts_with("<svg "), "{roots} roots");
    texts
}

/// Checks that each attribute has a name and a value in double quotes, and that no name comes
/// twice.
#[track_caller]
fn check_attributes(attributes: &str) {
    let mut names = Vec::new();
    let mut rest = attributes.trim();
    while !rest.is_empty() {
        let Some((name, value)) = rest.split_once("=\"") else { panic!("attributes: {rest:?}") };
        let Some((value, after)) = value.split_once('"') else { panic!("attributes: {rest:?}") };
        plain(value);
        let fine = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        assert!(fine && !names.contains(&name), "an attribute {name:?}");
        names.push(name);
        rest = after.trim_start();
    }
}

/// Replaces entities by their characters.
#[track_caller]
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        let Some((entity, after)) = after.split_once(';') else { panic!("a bare & in {text:?}") };
        plain.push_str(before);
        plain.push(match entity {
            "lt" => '<',
            "gt" => '>',
            "amp" => '&',
            "quot" => '"',
            "apos" => '\'',
            other => panic!("an unknown entity {other:?}"),
        });
        rest = after;
    }
    plain + rest
}
