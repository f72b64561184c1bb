from tests.service.api.conftest import *
from tests.service.api.test_keys import *
