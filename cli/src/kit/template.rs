//! Fills in a template: values for `{{NAME}}`, and a block that is repeated for each master.
//!
//! The hazard is a name that no value has: it stays in the text, and a test looks for it.

/// The line that begins a block, and the one that ends it.
const EACH: &str = "{{each master}}";
const END: &str = "{{end}}";

/// The text of a template for this many masters. In a block `{{I}}` is the number of the master,
/// from 1 on.
pub fn fill(template: &str, masters: usize, values: &[(&str, String)]) -> String {
    let template = values.iter().fold(template.to_owned(), |text, (name, value)| {
        text.replace(&format!("{{{{{name}}}}}"), value)
    });
    let mut filled = String::new();
    let mut block: Option<String> = None;
    for line in template.split_inclusive('\n') {
        match (line.trim(), &mut block) {
            (EACH, _) => block = Some(String::new()),
            (END, Some(text)) => {
                let of_master = |number: usize| text.replace("{{I}}", &number.to_string());
                filled.extend((1..=masters).map(of_master));
                block = None;
            }
            (_, Some(text)) => *text += line,
            (_, None) => filled += line,
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_block_is_repeated_for_each_master() {
        let template = "a {{X}}\n{{each master}}\n  {{I}} is {{HOST}}\n{{end}}\nb {{X}}\n";
        let values = [("X", "1".to_owned()), ("HOST", "redis-{{I}}".to_owned())];
        let expected = "a 1\n  1 is redis-1\n  2 is redis-2\nb 1\n";
        assert_eq!(fill(template, 2, &values), expected);
        assert_eq!(fill("{{Z}}\n", 1, &values), "{{Z}}\n");
    }
}
