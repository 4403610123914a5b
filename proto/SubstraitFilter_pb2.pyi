from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExtendedExpression(_message.Message):
    __slots__ = ("extensions", "referred_expr", "base_schema")
    EXTENSIONS_FIELD_NUMBER: _ClassVar[int]
    REFERRED_EXPR_FIELD_NUMBER: _ClassVar[int]
    BASE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    extensions: _containers.RepeatedCompositeFieldContainer[ExtensionDeclaration]
    referred_expr: _containers.RepeatedCompositeFieldContainer[ExpressionReference]
    base_schema: NamedStruct
    def __init__(self, extensions: _Optional[_Iterable[_Union[ExtensionDeclaration, _Mapping]]] = ..., referred_expr: _Optional[_Iterable[_Union[ExpressionReference, _Mapping]]] = ..., base_schema: _Optional[_Union[NamedStruct, _Mapping]] = ...) -> None: ...

class ExtensionDeclaration(_message.Message):
    __slots__ = ("extension_type", "extension_function")
    class ExtensionType(_message.Message):
        __slots__ = ("type_anchor", "name")
        TYPE_ANCHOR_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        type_anchor: int
        name: str
        def __init__(self, type_anchor: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...
    class ExtensionFunction(_message.Message):
        __slots__ = ("function_anchor", "name")
        FUNCTION_ANCHOR_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        function_anchor: int
        name: str
        def __init__(self, function_anchor: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...
    EXTENSION_TYPE_FIELD_NUMBER: _ClassVar[int]
    EXTENSION_FUNCTION_FIELD_NUMBER: _ClassVar[int]
    extension_type: ExtensionDeclaration.ExtensionType
    extension_function: ExtensionDeclaration.ExtensionFunction
    def __init__(self, extension_type: _Optional[_Union[ExtensionDeclaration.ExtensionType, _Mapping]] = ..., extension_function: _Optional[_Union[ExtensionDeclaration.ExtensionFunction, _Mapping]] = ...) -> None: ...

class ExpressionReference(_message.Message):
    __slots__ = ("expression",)
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    expression: Expression
    def __init__(self, expression: _Optional[_Union[Expression, _Mapping]] = ...) -> None: ...

class NamedStruct(_message.Message):
    __slots__ = ("names", "struct")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    struct: Type.Struct
    def __init__(self, names: _Optional[_Iterable[str]] = ..., struct: _Optional[_Union[Type.Struct, _Mapping]] = ...) -> None: ...

class Expression(_message.Message):
    __slots__ = ("literal", "selection", "scalar_function", "if_then", "singular_or_list", "cast")
    class Literal(_message.Message):
        __slots__ = ("boolean", "i8", "i16", "i32", "i64", "fp32", "fp64", "string", "binary", "timestamp", "date", "time", "fixed_char", "var_char", "fixed_binary", "decimal", "timestamp_tz", "uuid", "null", "user_defined", "precision_timestamp", "precision_timestamp_tz", "precision_time")
        class VarChar(_message.Message):
            __slots__ = ("value",)
            VALUE_FIELD_NUMBER: _ClassVar[int]
            value: str
            def __init__(self, value: _Optional[str] = ...) -> None: ...
        class Decimal(_message.Message):
            __slots__ = ("value", "scale")
            VALUE_FIELD_NUMBER: _ClassVar[int]
            SCALE_FIELD_NUMBER: _ClassVar[int]
            value: bytes
            scale: int
            def __init__(self, value: _Optional[bytes] = ..., scale: _Optional[int] = ...) -> None: ...
        class Precise(_message.Message):
            __slots__ = ("precision", "value")
            PRECISION_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            precision: int
            value: int
            def __init__(self, precision: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
        class UserDefined(_message.Message):
            __slots__ = ("value",)
            VALUE_FIELD_NUMBER: _ClassVar[int]
            value: Expression.Literal.Any
            def __init__(self, value: _Optional[_Union[Expression.Literal.Any, _Mapping]] = ...) -> None: ...
        class Any(_message.Message):
            __slots__ = ("type_url", "value")
            TYPE_URL_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            type_url: str
            value: bytes
            def __init__(self, type_url: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
        BOOLEAN_FIELD_NUMBER: _ClassVar[int]
        I8_FIELD_NUMBER: _ClassVar[int]
        I16_FIELD_NUMBER: _ClassVar[int]
        I32_FIELD_NUMBER: _ClassVar[int]
        I64_FIELD_NUMBER: _ClassVar[int]
        FP32_FIELD_NUMBER: _ClassVar[int]
        FP64_FIELD_NUMBER: _ClassVar[int]
        STRING_FIELD_NUMBER: _ClassVar[int]
        BINARY_FIELD_NUMBER: _ClassVar[int]
        TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        DATE_FIELD_NUMBER: _ClassVar[int]
        TIME_FIELD_NUMBER: _ClassVar[int]
        FIXED_CHAR_FIELD_NUMBER: _ClassVar[int]
        VAR_CHAR_FIELD_NUMBER: _ClassVar[int]
        FIXED_BINARY_FIELD_NUMBER: _ClassVar[int]
        DECIMAL_FIELD_NUMBER: _ClassVar[int]
        TIMESTAMP_TZ_FIELD_NUMBER: _ClassVar[int]
        UUID_FIELD_NUMBER: _ClassVar[int]
        NULL_FIELD_NUMBER: _ClassVar[int]
        USER_DEFINED_FIELD_NUMBER: _ClassVar[int]
        PRECISION_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        PRECISION_TIMESTAMP_TZ_FIELD_NUMBER: _ClassVar[int]
        PRECISION_TIME_FIELD_NUMBER: _ClassVar[int]
        boolean: bool
        i8: int
        i16: int
        i32: int
        i64: int
        fp32: float
        fp64: float
        string: str
        binary: bytes
        timestamp: int
        date: int
        time: int
        fixed_char: str
        var_char: Expression.Literal.VarChar
        fixed_binary: bytes
        decimal: Expression.Literal.Decimal
        timestamp_tz: int
        uuid: bytes
        null: Type
        user_defined: Expression.Literal.UserDefined
        precision_timestamp: Expression.Literal.Precise
        precision_timestamp_tz: Expression.Literal.Precise
        precision_time: Expression.Literal.Precise
        def __init__(self, boolean: bool = ..., i8: _Optional[int] = ..., i16: _Optional[int] = ..., i32: _Optional[int] = ..., i64: _Optional[int] = ..., fp32: _Optional[float] = ..., fp64: _Optional[float] = ..., string: _Optional[str] = ..., binary: _Optional[bytes] = ..., timestamp: _Optional[int] = ..., date: _Optional[int] = ..., time: _Optional[int] = ..., fixed_char: _Optional[str] = ..., var_char: _Optional[_Union[Expression.Literal.VarChar, _Mapping]] = ..., fixed_binary: _Optional[bytes] = ..., decimal: _Optional[_Union[Expression.Literal.Decimal, _Mapping]] = ..., timestamp_tz: _Optional[int] = ..., uuid: _Optional[bytes] = ..., null: _Optional[_Union[Type, _Mapping]] = ..., user_defined: _Optional[_Union[Expression.Literal.UserDefined, _Mapping]] = ..., precision_timestamp: _Optional[_Union[Expression.Literal.Precise, _Mapping]] = ..., precision_timestamp_tz: _Optional[_Union[Expression.Literal.Precise, _Mapping]] = ..., precision_time: _Optional[_Union[Expression.Literal.Precise, _Mapping]] = ...) -> None: ...
    class FieldReference(_message.Message):
        __slots__ = ("direct_reference",)
        DIRECT_REFERENCE_FIELD_NUMBER: _ClassVar[int]
        direct_reference: Expression.ReferenceSegment
        def __init__(self, direct_reference: _Optional[_Union[Expression.ReferenceSegment, _Mapping]] = ...) -> None: ...
    class ReferenceSegment(_message.Message):
        __slots__ = ("struct_field",)
        class StructField(_message.Message):
            __slots__ = ("field", "child")
            FIELD_FIELD_NUMBER: _ClassVar[int]
            CHILD_FIELD_NUMBER: _ClassVar[int]
            field: int
            child: Expression.ReferenceSegment
            def __init__(self, field: _Optional[int] = ..., child: _Optional[_Union[Expression.ReferenceSegment, _Mapping]] = ...) -> None: ...
        STRUCT_FIELD_FIELD_NUMBER: _ClassVar[int]
        struct_field: Expression.ReferenceSegment.StructField
        def __init__(self, struct_field: _Optional[_Union[Expression.ReferenceSegment.StructField, _Mapping]] = ...) -> None: ...
    class ScalarFunction(_message.Message):
        __slots__ = ("function_reference", "arguments", "options")
        FUNCTION_REFERENCE_FIELD_NUMBER: _ClassVar[int]
        ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
        OPTIONS_FIELD_NUMBER: _ClassVar[int]
        function_reference: int
        arguments: _containers.RepeatedCompositeFieldContainer[FunctionArgument]
        options: _containers.RepeatedCompositeFieldContainer[FunctionOption]
        def __init__(self, function_reference: _Optional[int] = ..., arguments: _Optional[_Iterable[_Union[FunctionArgument, _Mapping]]] = ..., options: _Optional[_Iterable[_Union[FunctionOption, _Mapping]]] = ...) -> None: ...
    class IfThen(_message.Message):
        __slots__ = ("ifs",)
        class IfClause(_message.Message):
            __slots__ = ("then",)
            IF_FIELD_NUMBER: _ClassVar[int]
            THEN_FIELD_NUMBER: _ClassVar[int]
            then: Expression
            def __init__(self, then: _Optional[_Union[Expression, _Mapping]] = ..., **kwargs) -> None: ...
        IFS_FIELD_NUMBER: _ClassVar[int]
        ELSE_FIELD_NUMBER: _ClassVar[int]
        ifs: _containers.RepeatedCompositeFieldContainer[Expression.IfThen.IfClause]
        def __init__(self, ifs: _Optional[_Iterable[_Union[Expression.IfThen.IfClause, _Mapping]]] = ..., **kwargs) -> None: ...
    class SingularOrList(_message.Message):
        __slots__ = ("value", "options")
        VALUE_FIELD_NUMBER: _ClassVar[int]
        OPTIONS_FIELD_NUMBER: _ClassVar[int]
        value: Expression
        options: _containers.RepeatedCompositeFieldContainer[Expression]
        def __init__(self, value: _Optional[_Union[Expression, _Mapping]] = ..., options: _Optional[_Iterable[_Union[Expression, _Mapping]]] = ...) -> None: ...
    class Cast(_message.Message):
        __slots__ = ("type", "input")
        TYPE_FIELD_NUMBER: _ClassVar[int]
        INPUT_FIELD_NUMBER: _ClassVar[int]
        type: Type
        input: Expression
        def __init__(self, type: _Optional[_Union[Type, _Mapping]] = ..., input: _Optional[_Union[Expression, _Mapping]] = ...) -> None: ...
    LITERAL_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    SCALAR_FUNCTION_FIELD_NUMBER: _ClassVar[int]
    IF_THEN_FIELD_NUMBER: _ClassVar[int]
    SINGULAR_OR_LIST_FIELD_NUMBER: _ClassVar[int]
    CAST_FIELD_NUMBER: _ClassVar[int]
    literal: Expression.Literal
    selection: Expression.FieldReference
    scalar_function: Expression.ScalarFunction
    if_then: Expression.IfThen
    singular_or_list: Expression.SingularOrList
    cast: Expression.Cast
    def __init__(self, literal: _Optional[_Union[Expression.Literal, _Mapping]] = ..., selection: _Optional[_Union[Expression.FieldReference, _Mapping]] = ..., scalar_function: _Optional[_Union[Expression.ScalarFunction, _Mapping]] = ..., if_then: _Optional[_Union[Expression.IfThen, _Mapping]] = ..., singular_or_list: _Optional[_Union[Expression.SingularOrList, _Mapping]] = ..., cast: _Optional[_Union[Expression.Cast, _Mapping]] = ...) -> None: ...

class FunctionArgument(_message.Message):
    __slots__ = ("enum", "value")
    ENUM_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    enum: str
    value: Expression
    def __init__(self, enum: _Optional[str] = ..., value: _Optional[_Union[Expression, _Mapping]] = ...) -> None: ...

class FunctionOption(_message.Message):
    __slots__ = ("name", "preference")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREFERENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    preference: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., preference: _Optional[_Iterable[str]] = ...) -> None: ...

class Type(_message.Message):
    __slots__ = ("bool", "i8", "i16", "i32", "i64", "fp32", "fp64", "string", "binary", "timestamp", "date", "time", "fixed_char", "varchar", "fixed_binary", "decimal", "struct", "list", "map", "timestamp_tz", "user_defined", "precision_timestamp", "precision_timestamp_tz", "precision_time")
    class Plain(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Sized(_message.Message):
        __slots__ = ("size",)
        SIZE_FIELD_NUMBER: _ClassVar[int]
        size: int
        def __init__(self, size: _Optional[int] = ...) -> None: ...
    class Decimal(_message.Message):
        __slots__ = ("scale", "precision")
        SCALE_FIELD_NUMBER: _ClassVar[int]
        PRECISION_FIELD_NUMBER: _ClassVar[int]
        scale: int
        precision: int
        def __init__(self, scale: _Optional[int] = ..., precision: _Optional[int] = ...) -> None: ...
    class Struct(_message.Message):
        __slots__ = ("types",)
        TYPES_FIELD_NUMBER: _ClassVar[int]
        types: _containers.RepeatedCompositeFieldContainer[Type]
        def __init__(self, types: _Optional[_Iterable[_Union[Type, _Mapping]]] = ...) -> None: ...
    class List(_message.Message):
        __slots__ = ("type",)
        TYPE_FIELD_NUMBER: _ClassVar[int]
        type: Type
        def __init__(self, type: _Optional[_Union[Type, _Mapping]] = ...) -> None: ...
    class Map(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: Type
        value: Type
        def __init__(self, key: _Optional[_Union[Type, _Mapping]] = ..., value: _Optional[_Union[Type, _Mapping]] = ...) -> None: ...
    class UserDefined(_message.Message):
        __slots__ = ("type_reference",)
        TYPE_REFERENCE_FIELD_NUMBER: _ClassVar[int]
        type_reference: int
        def __init__(self, type_reference: _Optional[int] = ...) -> None: ...
    BOOL_FIELD_NUMBER: _ClassVar[int]
    I8_FIELD_NUMBER: _ClassVar[int]
    I16_FIELD_NUMBER: _ClassVar[int]
    I32_FIELD_NUMBER: _ClassVar[int]
    I64_FIELD_NUMBER: _ClassVar[int]
    FP32_FIELD_NUMBER: _ClassVar[int]
    FP64_FIELD_NUMBER: _ClassVar[int]
    STRING_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    DATE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    FIXED_CHAR_FIELD_NUMBER: _ClassVar[int]
    VARCHAR_FIELD_NUMBER: _ClassVar[int]
    FIXED_BINARY_FIELD_NUMBER: _ClassVar[int]
    DECIMAL_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_TZ_FIELD_NUMBER: _ClassVar[int]
    USER_DEFINED_FIELD_NUMBER: _ClassVar[int]
    PRECISION_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    PRECISION_TIMESTAMP_TZ_FIELD_NUMBER: _ClassVar[int]
    PRECISION_TIME_FIELD_NUMBER: _ClassVar[int]
    bool: Type.Plain
    i8: Type.Plain
    i16: Type.Plain
    i32: Type.Plain
    i64: Type.Plain
    fp32: Type.Plain
    fp64: Type.Plain
    string: Type.Plain
    binary: Type.Plain
    timestamp: Type.Plain
    date: Type.Plain
    time: Type.Plain
    fixed_char: Type.Sized
    varchar: Type.Sized
    fixed_binary: Type.Sized
    decimal: Type.Decimal
    struct: Type.Struct
    list: Type.List
    map: Type.Map
    timestamp_tz: Type.Plain
    user_defined: Type.UserDefined
    precision_timestamp: Type.Sized
    precision_timestamp_tz: Type.Sized
    precision_time: Type.Sized
    def __init__(self, bool: _Optional[_Union[Type.Plain, _Mapping]] = ..., i8: _Optional[_Union[Type.Plain, _Mapping]] = ..., i16: _Optional[_Union[Type.Plain, _Mapping]] = ..., i32: _Optional[_Union[Type.Plain, _Mapping]] = ..., i64: _Optional[_Union[Type.Plain, _Mapping]] = ..., fp32: _Optional[_Union[Type.Plain, _Mapping]] = ..., fp64: _Optional[_Union[Type.Plain, _Mapping]] = ..., string: _Optional[_Union[Type.Plain, _Mapping]] = ..., binary: _Optional[_Union[Type.Plain, _Mapping]] = ..., timestamp: _Optional[_Union[Type.Plain, _Mapping]] = ..., date: _Optional[_Union[Type.Plain, _Mapping]] = ..., time: _Optional[_Union[Type.Plain, _Mapping]] = ..., fixed_char: _Optional[_Union[Type.Sized, _Mapping]] = ..., varchar: _Optional[_Union[Type.Sized, _Mapping]] = ..., fixed_binary: _Optional[_Union[Type.Sized, _Mapping]] = ..., decimal: _Optional[_Union[Type.Decimal, _Mapping]] = ..., struct: _Optional[_Union[Type.Struct, _Mapping]] = ..., list: _Optional[_Union[Type.List, _Mapping]] = ..., map: _Optional[_Union[Type.Map, _Mapping]] = ..., timestamp_tz: _Optional[_Union[Type.Plain, _Mapping]] = ..., user_defined: _Optional[_Union[Type.UserDefined, _Mapping]] = ..., precision_timestamp: _Optional[_Union[Type.Sized, _Mapping]] = ..., precision_timestamp_tz: _Optional[_Union[Type.Sized, _Mapping]] = ..., precision_time: _Optional[_Union[Type.Sized, _Mapping]] = ...) -> None: ...
