"""Errors of datasets, under Ray's names of the errors and of their module."""

from hocket.exceptions import SystemError as SystemException
from hocket.exceptions import UserCodeException
from hocket.exceptions import UserCodeException as RayDataUserCodeException

__all__ = ["RayDataUserCodeException", "SystemException", "UserCodeException"]
