"""The learner's own file, `my_train.py`: each edit is compared with the file as it was before."""

NOTEBOOK = {"my_train": "perfkit.additions.my_train.panel:my_train"}
