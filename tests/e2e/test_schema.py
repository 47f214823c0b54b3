"""docs/lamina.schema.json, with which editors complete and check hierarchy files: good files are good there, and wrong
ones wrong, as far as a schema can know."""

import json
import re
import tomllib
import unittest

import jsonschema

from rig.files import ROOT

# What the parser says of mistakes that are of the shape of the file, and not of its meaning.
SHAPE = re.compile(
    r"unknown (key|table|word)|there is no type|is missing|expected (a|true)\b|leave the key out|such as \"5ms\""
)


class Schema(unittest.TestCase):
    def setUp(self):
        schema = json.loads((ROOT / "docs/lamina.schema.json").read_text())
        jsonschema.Draft7Validator.check_schema(schema)
        self.validator = jsonschema.Draft7Validator(schema)

    def errors(self, text):
        return [error.message for error in self.validator.iter_errors(tomllib.loads(text))]

    def test_examples_are_good(self):
        examples = sorted((ROOT / "examples").glob("*.toml"))
        self.assertGreater(len(examples), 10)
        for path in examples:
            with self.subTest(path.name):
                self.assertEqual(self.errors(path.read_text()), [])

    def test_files_of_the_manual_are_good(self):
        blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/hierarchy.md").read_text(), re.S)
        whole = [block for block in blocks if "[device." in block]
        self.assertGreater(len(whole), 2)
        for block in whole:
            with self.subTest(block.split("\n")[0]):
                self.assertEqual(self.errors(block), [])

    def test_files_of_a_wrong_shape_are_wrong(self):
        page = (ROOT / "docs/hierarchy-errors.md").read_text()
        wrong = 0
        for section in page.split("\n## ")[1:]:
            title = section.split("\n")[0]
            file, said = re.search(r"```toml\n(.*?)```.*?```text\n(.*?)```", section, re.S).groups()
            try:
                tomllib.loads(file)
            except tomllib.TOMLDecodeError:
                continue
            if SHAPE.search(said):
                wrong += 1
                with self.subTest(title):
                    self.assertNotEqual(self.errors(file), [], said)
        self.assertGreater(wrong, 25)

    def test_keys_are_explained(self):
        devices = self.validator.schema["properties"]["device"]["additionalProperties"]["oneOf"]
        for device in devices:
            for key, schema in device["properties"].items():
                with self.subTest(device["title"], key=key):
                    self.assertTrue(key == "over" or schema.get("description"), schema)
