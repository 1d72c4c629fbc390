"""What the tests of the Python facade share. KVC_RECALL and KVC_STORIES name model files."""
import os
import sys
import unittest

WITHOUT_NUMPY = bool(os.environ.get("KVC_TEST_NO_NUMPY"))
if WITHOUT_NUMPY:
    sys.modules["numpy"] = None  # as where it is not installed

import kvc  # pylint: disable=wrong-import-position
from kvc import _native  # pylint: disable=wrong-import-position

RECALL, STORIES = os.environ["KVC_RECALL"], os.environ["KVC_STORIES"]
STORY = "Once upon a time there was a little girl who lived in a small house. She had a dog and a red ball. "


class Case(unittest.TestCase):
    """A test with the model recall, open for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.model = kvc.Model(RECALL)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()

    def reading(self, policy=None, **options):
        session = self.model.session(policy, **options)
        self.addCleanup(session.close)
        session.prefill(self.model.prompt(STORY))
        return session

    def steps(self, session, n):
        return [session.step() for _ in range(n)]


def main():
    """Runs the tests of the program. What they say of arrays of numpy has not passed where there is none."""
    if _native.numpy is None and not WITHOUT_NUMPY:
        print("numpy was not found")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
