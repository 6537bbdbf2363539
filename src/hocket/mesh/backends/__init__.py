"""Layouts in frameworks: `contract` names the verbs, each other module is a framework's."""
