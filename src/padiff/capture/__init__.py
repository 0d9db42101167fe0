"""Running a model and seeing what happens inside, without changing it."""

from padiff.capture.recorder import Observer as Observer
from padiff.capture.session import Arguments as Arguments
from padiff.capture.session import Session as Session
from padiff.capture.session import check_arguments as check_arguments
